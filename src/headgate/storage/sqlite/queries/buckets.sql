-- Buckets with what waits behind them, most waiting first. Of a dynamic window the state is the one that covers all keys.
SELECT json_group_array(json_array(json_array(limit_name, key), state, waiting, opens_at, closed_until, lanes))
FROM (
    SELECT *
    FROM (
        SELECT
            limit_name,
            key,
            coalesce(
                state,
                (
                    SELECT shared.state FROM bucket AS shared
                    WHERE shared.limit_name = bucket.limit_name AND shared.key = '' AND shared.state LIKE '1:dynamic:%'
                )
            ) AS state,
            opens_at,
            closed_until,
            coalesce((SELECT sum(waiting) FROM lane WHERE behind = bucket.id), 0) AS waiting,
            (SELECT count(*) FROM lane WHERE behind = bucket.id) AS lanes
        FROM bucket
        WHERE NOT (key = '' AND coalesce(state, '') LIKE '1:dynamic:%')
            AND (:limit IS NULL OR limit_name = :limit)
            AND (:key IS NULL OR key = :key)
            AND (:prefix IS NULL OR substr(key, 1, length(:prefix)) = :prefix)
    )
    WHERE :after_opens IS NULL
        OR (opens_at IS NULL, -waiting, limit_name, key) > (NOT :after_opens, -:after_waiting, :after_limit, :after_key)
    ORDER BY opens_at IS NULL, waiting DESC, limit_name, key
    LIMIT :count
)
