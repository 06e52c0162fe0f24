-- Queues that are paused or have waiting jobs: since when the oldest job is ready, and since when one lacks only a slot.
-- Each lane is asked for the first job of each priority between its highest and its lowest, so a lane of a million costs
-- no more than one of ten.
WITH
known AS (
    SELECT id, queue, gated, since, behind, wakes_at FROM headgate.lane
    UNION
    SELECT lane, queue, draws <> '[]', min(since) FILTER (WHERE is_ready), NULL, min(wakes_at)
    FROM headgate.arrival
    WHERE NOT EXISTS (SELECT 1 FROM headgate.lane WHERE lane.id = arrival.lane)
    GROUP BY lane, queue, draws
),
oldest AS MATERIALIZED (
    SELECT
        known.*,
        (
            SELECT min(first.run_at)
            FROM (VALUES (false), (true)) AS kind (delayed)
            CROSS JOIN LATERAL generate_series(
                (SELECT min(priority)::integer FROM headgate.job WHERE lane = known.id AND waiting AND job.delayed = kind.delayed),
                (SELECT max(priority)::integer FROM headgate.job WHERE lane = known.id AND waiting AND job.delayed = kind.delayed)
            ) AS level
            CROSS JOIN LATERAL (
                SELECT run_at FROM headgate.job
                WHERE lane = known.id AND waiting AND job.delayed = kind.delayed AND priority = level
                    AND (NOT kind.delayed OR run_at <= :now)
                ORDER BY run_at
                LIMIT 1
            ) AS first
        ) AS run_at,
        EXISTS (SELECT 1 FROM headgate.job WHERE job.lane = known.id AND waiting) AS has_jobs
    FROM known
),
ready (queue, at) AS (
    SELECT queue, run_at FROM oldest WHERE NOT gated AND run_at IS NOT NULL
    UNION ALL
    SELECT queue, :now::bigint - (:limit_now::bigint - since) FROM oldest
    WHERE gated AND behind IS NULL AND since IS NOT NULL AND run_at IS NOT NULL
    UNION ALL
    SELECT queue, coalesce(wakes_at, run_at) FROM oldest
    WHERE gated AND since IS NULL AND run_at IS NOT NULL
    UNION ALL
    SELECT oldest.queue, :now::bigint - (:limit_now::bigint - opens_at)
    FROM headgate.bucket JOIN oldest ON oldest.behind = bucket.id
    WHERE opens_at <= :limit_now::bigint AND oldest.run_at IS NOT NULL
),
named AS (
    SELECT queue FROM oldest WHERE has_jobs
    UNION
    SELECT queue FROM headgate.job WHERE state = 'blocked'
    UNION
    SELECT queue FROM headgate.paused_queue
)
SELECT
    queue,
    paused_at,
    oldest_at,
    CASE
        WHEN paused_at IS NULL AND oldest_at IS NOT NULL THEN (SELECT min(at) FROM ready WHERE ready.queue = found.queue)
    END AS ready_at
FROM (
    SELECT queue, paused_at, (SELECT min(run_at) FROM oldest WHERE oldest.queue = named.queue) AS oldest_at
    FROM named LEFT JOIN headgate.paused_queue USING (queue)
) AS found
ORDER BY queue
