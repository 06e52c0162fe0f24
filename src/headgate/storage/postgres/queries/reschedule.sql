-- A waiting job has another time, or another priority; :give_up_at is when it has waited long enough from that time on.
-- Its fence grows, so that a claim that has read it before does not start it as it was.
UPDATE headgate.job
SET run_at = :run_at, delayed = :delayed::boolean, priority = coalesce(:priority::smallint, priority),
    give_up_at = CASE WHEN state = 'waiting' THEN coalesce(:give_up_at::bigint, give_up_at) END, fence = fence + (state = 'waiting')::integer
WHERE id = :id AND state IN ('waiting', 'blocked')
