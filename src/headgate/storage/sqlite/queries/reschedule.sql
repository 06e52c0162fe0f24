-- A waiting job has another time, or another priority; :give_up_at is when it has waited long enough from that time on.
UPDATE job
SET run_at = :run_at, delayed = :delayed, priority = coalesce(:priority, priority),
    give_up_at = CASE WHEN state = 'waiting' THEN coalesce(:give_up_at, give_up_at) END, fence = fence + (state = 'waiting')
WHERE seq = :seq AND state IN ('waiting', 'blocked')
