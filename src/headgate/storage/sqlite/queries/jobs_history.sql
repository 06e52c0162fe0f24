-- The steps of one curve, in order.
SELECT json_group_array(json_array(
    step, queue, task, at, enqueued, started, succeeded, failed, cancelled, retried, wait_max, run_max, json(waits),
    json(runs)
))
FROM (
    SELECT * FROM jobs_history WHERE step = :step AND queue = :queue AND task = :task AND at >= :since ORDER BY at
)
