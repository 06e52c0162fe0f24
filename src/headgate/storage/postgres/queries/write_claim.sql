-- What a claim of gated jobs comes to: charged buckets, lanes that have moved, and jobs that are the node's to run.
-- It counts as made only if all the jobs, which come back, still wait in the lanes in which they were read, as they were
-- read, and nobody else has one of them locked: that may be a user's transaction, for which nobody is to wait.
WITH charged AS (
    UPDATE headgate.bucket SET state = new.state, idle_at = new.idle_at
    FROM unnest(:buckets::text[], :states::text[], :idle_at::bigint[]) AS new (id, state, idle_at)
    WHERE bucket.id = new.id
),
moved AS (
    UPDATE headgate.lane
    SET waiting = lane.waiting - new.gone, since = new.since, behind = new.behind, wakes_at = new.wakes_at,
        opened_at = new.opened_at
    FROM unnest(:lanes::text[], :gone::integer[], :since::bigint[], :behind::text[], :wakes_at::bigint[],
        :opened_at::bigint[]) AS new (id, gone, since, behind, wakes_at, opened_at)
    WHERE lane.id = new.id
),
free AS (
    SELECT id FROM headgate.job WHERE id = ANY(:ids::text[]) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE headgate.job
SET state = 'running', waiting = false, node = :node, started_at = :now, attempt = attempt + 1, fence = job.fence + 1,
    cancel_requested = false, charged_at = :limit_now, held = new.held, uncharged = new.uncharged
FROM unnest(:ids::text[], :job_lanes::text[], :fences::integer[], :held::bigint[], :uncharged::bigint[])
    AS new (id, lane, fence, held, uncharged)
JOIN free ON free.id = new.id
WHERE job.id = new.id AND job.lane = new.lane AND job.fence = new.fence AND job.state = 'waiting'
RETURNING job.id
