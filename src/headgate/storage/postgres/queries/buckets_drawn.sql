-- Buckets as people look at them, in the order in which they are asked for. Of a dynamic window the state is the one that
-- covers all keys.
SELECT
    drawn.limit_name,
    drawn.key,
    coalesce(
        bucket.state,
        (
            SELECT shared.state FROM headgate.bucket AS shared
            WHERE shared.limit_name = drawn.limit_name AND shared.key = '' AND shared.state LIKE '1:dynamic:%'
        )
    ) AS state,
    coalesce(line.waiting, 0)::bigint AS waiting,
    bucket.opens_at,
    coalesce(bucket.closed_until, 0) AS closed_until,
    coalesce(line.lanes, 0) AS lanes
FROM unnest(:ids::text[], :limits::text[], :keys::text[]) WITH ORDINALITY AS drawn (id, limit_name, key, place)
LEFT JOIN headgate.bucket ON bucket.id = drawn.id
LEFT JOIN LATERAL (
    SELECT sum(waiting) AS waiting, count(*) AS lanes FROM headgate.lane WHERE behind = drawn.id
) AS line ON true
ORDER BY drawn.place
