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
    coalesce(line.waiting, 0) AS waiting,
    opens_at,
    closed_until,
    coalesce(line.lanes, 0) AS lanes
FROM headgate.bucket
LEFT JOIN (
    SELECT behind, sum(waiting)::bigint AS waiting, count(*) AS lanes FROM headgate.lane WHERE behind IS NOT NULL GROUP BY behind
) AS line ON line.behind = bucket.id
WHERE opens_at IS NOT NULL AND NOT (key = '' AND coalesce(state, '') LIKE '1:dynamic:%')
ORDER BY waiting DESC, limit_name, key
LIMIT :count
