-- These waiting jobs end without having run; :jobs is an array of [seq, state, error].
UPDATE job
SET state = json_extract(dropped.value, '$[1]'), waiting = false, finished_at = :now, error = json_extract(dropped.value, '$[2]')
FROM json_each(:jobs) AS dropped
WHERE job.seq = json_extract(dropped.value, '$[0]') AND +job.state IN ('waiting', 'blocked')
