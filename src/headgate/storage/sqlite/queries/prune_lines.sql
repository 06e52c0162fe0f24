-- Forget what pruned jobs have logged.
DELETE FROM log_line WHERE job IN (SELECT value FROM json_each(:ids))
