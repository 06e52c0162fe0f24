-- Queues that are paused or have waiting jobs: since when the oldest job is ready, and since when one lacks only a slot.
-- Each lane is asked for the first job of its highest priority, and of each below that, so a lane of a million costs no
-- more than one of ten.
WITH
oldest AS MATERIALIZED (
    SELECT
        lane.queue,
        lane.gated,
        (
            SELECT min(first)
            FROM (
                SELECT (
                    SELECT min(run_at) FROM job
                    WHERE lane = lane.id AND waiting AND delayed = 0 AND priority = level.column1
                ) AS first
                FROM (
                    SELECT max(priority) AS priority FROM job WHERE lane = lane.id AND waiting AND delayed = 0
                ) AS highest
                JOIN (VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9)) AS level
                    ON level.column1 <= highest.priority
                UNION ALL
                SELECT (
                    SELECT min(run_at) FROM job
                    WHERE lane = lane.id AND waiting AND delayed = 1 AND priority = level.column1
                        AND run_at <= :now
                ) AS first
                FROM (VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9)) AS level
                WHERE lane.wakes_at <= :now
            )
        ) AS run_at
    FROM lane
    WHERE waiting > 0
),
known AS (
    SELECT queue FROM oldest
    UNION
    SELECT queue FROM job WHERE state = 'blocked'
    UNION
    SELECT queue FROM paused_queue
),
ready (queue, at) AS (
    SELECT queue, run_at FROM oldest WHERE NOT gated
    UNION ALL
    SELECT queue, :now - (:limit_now - since) FROM lane WHERE gated AND behind IS NULL AND since IS NOT NULL
    UNION ALL
    SELECT queue, wakes_at FROM lane WHERE gated AND since IS NULL AND wakes_at <= :now
    UNION ALL
    SELECT lane.queue, :now - (:limit_now - opens_at)
    FROM bucket JOIN lane ON lane.behind = bucket.id
    WHERE opens_at <= :limit_now
)
SELECT json_group_array(
    json_array(
        queue, paused_at, oldest_at, CASE WHEN paused_at IS NULL AND oldest_at IS NOT NULL THEN ready_at END
    )
)
FROM (
    SELECT
        known.queue,
        paused_at,
        (SELECT min(run_at) FROM oldest WHERE oldest.queue = known.queue) AS oldest_at,
        (SELECT min(at) FROM ready WHERE ready.queue = known.queue) AS ready_at
    FROM known LEFT JOIN paused_queue ON paused_queue.queue = known.queue
    ORDER BY known.queue
)
