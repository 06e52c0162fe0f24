-- Running jobs become final; :endings is an array of [job seq, state, result, error].
UPDATE job
SET state = json_extract(ended.value, '$[1]'),
    result = json_extract(ended.value, '$[2]'),
    error = json_extract(ended.value, '$[3]'),
    finished_at = :now
FROM json_each(:endings) AS ended
WHERE job.seq = json_extract(ended.value, '$[0]') AND +job.state = 'running'
