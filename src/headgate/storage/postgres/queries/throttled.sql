-- Buckets that lanes wait behind, most waiting first, as in buckets.sql.
SELECT
    limit_name,
    key,
    coalesce(
        state,
        (
            SELECT shared.state FROM headgate.bucket AS shared
            WHERE shared.limit_name = bucket.limit_name AND shared.key = '' AND shared.state LIKE '1:dynamic:%'
        )
    ) AS state,
    line.waiting,
    opens_at,
    closed_until,
    line.lanes
FROM headgate.bucket
CROSS JOIN LATERAL (
    SELECT coalesce(sum(waiting), 0)::bigint AS waiting, count(*) AS lanes FROM headgate.lane WHERE behind = bucket.id
) AS line
WHERE opens_at IS NOT NULL AND NOT (key = '' AND coalesce(state, '') LIKE '1:dynamic:%')
ORDER BY line.waiting DESC, limit_name, key
LIMIT :count
