-- The permits that jobs still hold; :jobs is an array of [seq, held].
UPDATE job SET held = json_extract(kept.value, '$[1]')
FROM json_each(:jobs) AS kept
WHERE job.seq = json_extract(kept.value, '$[0]')
