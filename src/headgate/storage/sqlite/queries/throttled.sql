-- Buckets that lanes wait behind, most waiting first, as in buckets.sql.
SELECT json_group_array(json_array(json_array(limit_name, key), state, waiting, opens_at, closed_until, lanes))
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
    WHERE opens_at IS NOT NULL AND NOT (key = '' AND coalesce(state, '') LIKE '1:dynamic:%')
    ORDER BY waiting DESC, limit_name, key
    LIMIT :count
)
