-- The states of all buckets of a limit that hold permits.
SELECT json_group_array(state) FROM bucket WHERE limit_name = :limit AND state LIKE '1:concurrency:%'
