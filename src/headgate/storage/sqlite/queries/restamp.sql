-- Waiting jobs that ask for the same under another gate; :jobs is an array of [id, draws before, gate].
UPDATE job SET gate = json_extract(stays.value, '$[2]')
FROM json_each(:jobs) AS stays
WHERE job.id = json_extract(stays.value, '$[0]') AND +job.state IN ('waiting', 'blocked')
    AND job.draws = json_extract(stays.value, '$[1]')
