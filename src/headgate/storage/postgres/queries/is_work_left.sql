-- Whether a job of these queues runs, or one of these tasks is left to run in those of them that are not paused; with :ready_only
-- one that could start now. In one look, so that a job that starts or ends meanwhile is seen as it was or as it is.
WITH
served AS MATERIALIZED (
    SELECT queue FROM unnest(:queues::text[]) AS asked (queue) WHERE queue NOT IN (SELECT queue FROM headgate.paused_queue)
),
line AS (
    SELECT lane.id
    FROM headgate.lane LEFT JOIN headgate.bucket ON bucket.id = lane.behind
    WHERE lane.queue IN (SELECT queue FROM served) AND NOT (:ready_only::boolean AND coalesce(bucket.opens_at > :limit_now, false))
    UNION ALL
    SELECT lane FROM headgate.arrival
    WHERE queue IN (SELECT queue FROM served) AND NOT EXISTS (SELECT 1 FROM headgate.lane WHERE lane.id = arrival.lane)
)
SELECT
    EXISTS (SELECT 1 FROM headgate.job WHERE state = 'running' AND queue = ANY(:queues::text[]))
    OR EXISTS (
        SELECT 1
        FROM line
        CROSS JOIN LATERAL (
            SELECT 1 FROM headgate.job
            WHERE lane = line.id AND waiting AND task = ANY(:tasks::text[])
                AND NOT (:ready_only::boolean AND delayed AND run_at > :now)
            LIMIT 1
        ) AS first
    )
    OR (
        NOT :ready_only::boolean AND EXISTS (
            SELECT 1 FROM headgate.job
            WHERE state = 'blocked' AND queue IN (SELECT queue FROM served) AND task = ANY(:tasks::text[])
        )
    )
