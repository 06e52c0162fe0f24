-- These waiting jobs end without having run.
UPDATE headgate.job
SET state = new.state, waiting = false, finished_at = :now, error = new.error, held = new.held
FROM unnest(:ids::text[], :lanes::bytea[], :states::text[], :errors::text[], :held::bigint[])
    AS new (id, lane, state, error, held)
WHERE job.id = new.id AND job.lane = new.lane AND (job.state = 'waiting' OR job.state = 'blocked')
RETURNING job.id, job.is_followed, job.batch
