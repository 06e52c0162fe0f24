-- The states of all buckets of a limit that hold permits.
SELECT state FROM headgate.bucket WHERE limit_name = :limit AND state LIKE '1:concurrency:%'
