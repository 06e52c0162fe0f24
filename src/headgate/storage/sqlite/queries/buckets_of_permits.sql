-- All buckets that grant permits.
SELECT json_group_array(json_array(id, limit_name, key, state, opens_at, closed_until))
FROM bucket WHERE state LIKE '1:concurrency:%'
