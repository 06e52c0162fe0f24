-- All buckets that grant permits.
SELECT limit_name, key, state, opens_at FROM headgate.bucket WHERE state LIKE '1:concurrency:%'
