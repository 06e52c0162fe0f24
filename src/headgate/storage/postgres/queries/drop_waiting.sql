-- These waiting jobs end without having run; but for those that somebody else has locked.
WITH free AS (
    SELECT id FROM headgate.job WHERE id = ANY(:ids::text[]) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE headgate.job
SET state = new.state, waiting = false, finished_at = :now, error = new.error, held = new.held
FROM unnest(:ids::text[], :lanes::bytea[], :states::text[], :errors::text[], :held::bigint[])
    AS new (id, lane, state, error, held)
JOIN free ON free.id = new.id
WHERE job.id = new.id AND job.lane = new.lane AND (job.state = 'waiting' OR job.state = 'blocked')
RETURNING job.id, job.is_followed, job.batch
