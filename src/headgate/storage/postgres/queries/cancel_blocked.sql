-- Blocked jobs, which are locked, will never run. Without an error they keep the one they have.
UPDATE headgate.job
SET state = 'cancelled', finished_at = :now, error = coalesce(cancelled.error, job.error)
FROM unnest(:ids::text[], :errors::text[]) AS cancelled (id, error)
WHERE job.id = cancelled.id AND job.finished_at IS NULL AND NOT job.waiting
