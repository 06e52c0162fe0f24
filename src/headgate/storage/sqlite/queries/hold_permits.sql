-- Jobs that were claimed: the permits they hold now, and what they were not charged for; :jobs is an array of
-- [seq, held, uncharged].
UPDATE job
SET held = json_extract(claimed.value, '$[1]'), uncharged = json_extract(claimed.value, '$[2]')
FROM json_each(:jobs) AS claimed
WHERE job.seq = json_extract(claimed.value, '$[0]')
