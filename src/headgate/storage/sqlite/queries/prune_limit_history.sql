-- Forget steps that began before then.
DELETE FROM limit_history
WHERE (step, limit_name, of_all, key, at) IN (SELECT step, limit_name, of_all, key, at FROM limit_history WHERE step = :step AND at < :before LIMIT :count)
