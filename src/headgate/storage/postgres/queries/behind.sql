-- The lanes of each queue that have waited longest behind each opened bucket, as many of each as it grants.
WITH @instant
SELECT coalesce(json_agg(@lane_row), '[]') AS lanes
FROM unnest(:buckets::text[], :counts::integer[]) AS opened (bucket, grants)
CROSS JOIN unnest(:queues::text[]) AS wanted
CROSS JOIN LATERAL (
    SELECT * FROM headgate.lane
    WHERE behind = opened.bucket AND queue = wanted
        AND (NOT :known_only::boolean OR (@lane_is_known))
    ORDER BY since, id
    LIMIT opened.grants
) AS lane
