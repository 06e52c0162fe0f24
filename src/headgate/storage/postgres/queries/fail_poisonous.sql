-- Running jobs that lost too many attempts with their nodes are not run again.
UPDATE headgate.job
SET state = 'failed', finished_at = :now, lost = lost + 1, error = poisonous.error, held = poisonous.held
FROM unnest(:ids::text[], :errors::text[], :held::bigint[]) AS poisonous (id, error, held)
WHERE job.id = poisonous.id AND job.finished_at IS NULL AND NOT job.waiting
