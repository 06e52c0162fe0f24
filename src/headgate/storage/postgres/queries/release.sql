-- Blocked jobs, which are locked, wait in their lanes, ready now or at the time that was asked for them.
UPDATE headgate.job
SET state = 'waiting', waiting = true, lane = released.lane,
    delayed = delayed AND run_at > :now::bigint,
    run_at = greatest(run_at, :now::bigint),
    give_up_at = greatest(run_at, :now::bigint) + released.patience
FROM unnest(:ids::text[], :lanes::bytea[], :patience::bigint[]) AS released (id, lane, patience)
WHERE job.id = released.id AND job.finished_at IS NULL AND NOT job.waiting
RETURNING job.id, job.delayed, job.run_at
