-- The steps of one curve, in order.
SELECT step, queue, task, at, enqueued, started, succeeded, failed, cancelled, retried, wait_max, run_max, waits, runs
FROM headgate.jobs_history
WHERE step = :step::integer AND queue = :queue::text AND task = :task::text AND at >= :since::bigint
ORDER BY at
