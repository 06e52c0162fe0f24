-- Forget steps that began before then.
DELETE FROM jobs_history
WHERE (step, queue, task, at) IN (SELECT step, queue, task, at FROM jobs_history WHERE step = :step AND at < :before LIMIT :count)
