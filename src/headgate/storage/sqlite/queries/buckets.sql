-- Buckets with what waits behind them, most waiting first.
SELECT json_group_array(json_array(json_array(limit_name, key), state, waiting, opens_at))
FROM (
    SELECT
        limit_name,
        key,
        state,
        opens_at,
        coalesce((SELECT sum(waiting) FROM lane WHERE behind = bucket.id), 0) AS waiting
    FROM bucket
    WHERE (:limit IS NULL OR limit_name = :limit) AND (:key IS NULL OR key = :key)
    ORDER BY opens_at IS NULL, waiting DESC, limit_name, key
    LIMIT :count
)
