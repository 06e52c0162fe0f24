-- Queues that are paused or have waiting jobs: since when the oldest job is ready, and since when one lacks only a slot.
-- Each lane is asked for the first job of its highest priority, and of each below that, so a lane of a million costs no
-- more than one of ten, and one without priorities a single look.
WITH
known AS (
    SELECT id, queue, gated, since, behind, wakes_at FROM headgate.lane
    UNION
    SELECT lane, queue, draws <> '[]', min(since) FILTER (WHERE is_ready), NULL, min(wakes_at)
    FROM headgate.arrival
    WHERE NOT EXISTS (SELECT 1 FROM headgate.lane WHERE lane.id = arrival.lane)
    GROUP BY lane, queue, draws
),
topmost AS MATERIALIZED (
    SELECT known.*, fresh.priority AS fresh_priority, fresh.run_at AS fresh_at, late.priority AS late_priority
    FROM known
    LEFT JOIN LATERAL (
        SELECT priority, run_at FROM headgate.job
        WHERE lane = known.id AND waiting AND NOT delayed
        ORDER BY priority DESC, run_at
        LIMIT 1
    ) AS fresh ON true
    LEFT JOIN LATERAL (
        SELECT priority FROM headgate.job
        WHERE lane = known.id AND waiting AND delayed
        ORDER BY priority DESC
        LIMIT 1
    ) AS late ON true
),
oldest AS MATERIALIZED (
    SELECT
        topmost.*,
        least(
            fresh_at,
            (
                SELECT min(below.run_at)
                FROM generate_series(0, fresh_priority - 1) AS level
                CROSS JOIN LATERAL (
                    SELECT run_at FROM headgate.job
                    WHERE lane = topmost.id AND waiting AND NOT delayed AND priority = level
                    ORDER BY run_at
                    LIMIT 1
                ) AS below
                WHERE fresh_priority > 0
            ),
            (
                SELECT min(due.run_at)
                FROM generate_series(0, late_priority) AS level
                CROSS JOIN LATERAL (
                    SELECT run_at FROM headgate.job
                    WHERE lane = topmost.id AND waiting AND delayed AND priority = level AND run_at <= :now
                    ORDER BY run_at
                    LIMIT 1
                ) AS due
                WHERE late_priority IS NOT NULL
            )
        ) AS run_at
    FROM topmost
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
    SELECT queue FROM oldest WHERE coalesce(fresh_priority, late_priority) IS NOT NULL
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
