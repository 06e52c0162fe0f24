-- The last starts of running jobs as they came to be charged; :jobs is an array of [seq, charged_at, settled costs].
UPDATE job
SET charged_at = json_extract(settled.value, '$[1]'), settled = json_extract(settled.value, '$[2]')
FROM json_each(:jobs) AS settled
WHERE job.seq = json_extract(settled.value, '$[0]')
