-- The jobs of a task that are not final under a unique key: the one that waits, and those that run.
SELECT @standing_job FROM headgate.job
WHERE task = :task AND unique_key = :unique_key AND unique_key IS NOT NULL AND state IN ('waiting', 'blocked')
UNION ALL
SELECT @standing_job FROM headgate.job
WHERE task = :task AND unique_key = :unique_key AND unique_key IS NOT NULL AND state = 'running'
