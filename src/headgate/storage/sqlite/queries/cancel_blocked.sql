-- Blocked jobs will never run; :jobs is an array of [seq, error], NULL for the error that it has.
UPDATE job
SET state = 'cancelled', finished_at = :now, error = coalesce(json_extract(cancelled.value, '$[1]'), error)
FROM json_each(:jobs) AS cancelled
WHERE job.seq = json_extract(cancelled.value, '$[0]') AND +job.state = 'blocked'
