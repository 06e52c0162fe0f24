-- Buckets with what waits behind them, most waiting first. Of a dynamic window the state is the one that covers all keys.
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
    coalesce(line.waiting, 0)::bigint AS waiting,
    opens_at,
    closed_until,
    coalesce(line.lanes, 0) AS lanes
FROM headgate.bucket
LEFT JOIN LATERAL (
    SELECT sum(waiting) AS waiting, count(*) AS lanes FROM headgate.lane WHERE behind = bucket.id
) AS line ON bucket.opens_at IS NOT NULL
WHERE NOT (key = '' AND coalesce(state, '') LIKE '1:dynamic:%')
    AND (:limit::text IS NULL OR limit_name = :limit)
    AND (:key::text IS NULL OR key = :key)
    AND (:prefix::text IS NULL OR starts_with(key, :prefix))
    AND (
        :after_opens::integer IS NULL
        OR (opens_at IS NULL, -coalesce(line.waiting, 0), limit_name, key)
            > (:after_opens::integer = 0, -:after_waiting::bigint, :after_limit::text, :after_key::text)
    )
ORDER BY opens_at IS NULL, waiting DESC, limit_name, key
LIMIT :count
