-- Forget what pruned jobs have logged.
DELETE FROM headgate.log_line WHERE job = ANY(:ids::text[])
