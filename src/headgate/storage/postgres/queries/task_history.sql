-- The steps of one task in each of its queues, in order.
SELECT step, queue, task, at, enqueued, started, succeeded, failed, cancelled, retried, wait_max, run_max, waits, runs
FROM headgate.jobs_history
WHERE step = :step::integer AND task = :task::text AND at >= :since::bigint
ORDER BY at, queue
