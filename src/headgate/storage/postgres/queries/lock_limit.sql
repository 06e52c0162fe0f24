-- All buckets of a limit, locked.
SELECT id FROM headgate.bucket WHERE limit_name = :limit ORDER BY id FOR UPDATE
