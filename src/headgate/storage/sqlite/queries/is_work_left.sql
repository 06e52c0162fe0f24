-- Whether a job of these queues runs, or one of these tasks is left to run in those of them that are not paused; with :ready_only
-- one that could start now. In one look, so that a job that starts or ends meanwhile is seen as it was or as it is.
WITH
served AS (SELECT value AS queue FROM json_each(:queues) WHERE value NOT IN (SELECT queue FROM paused_queue)),
known AS (SELECT value AS task FROM json_each(:tasks))
SELECT
    EXISTS (SELECT 1 FROM job WHERE state = 'running' AND queue IN (SELECT value FROM json_each(:queues)))
    OR EXISTS (
        SELECT 1
        FROM lane
        LEFT JOIN bucket ON bucket.id = lane.behind
        CROSS JOIN job ON job.lane = lane.id AND job.waiting
        WHERE lane.queue IN (SELECT queue FROM served) AND lane.waiting > 0 AND job.task IN (SELECT task FROM known)
            AND NOT (:ready_only AND (coalesce(bucket.opens_at > :limit_now, false) OR (job.delayed AND job.run_at > :now)))
    )
    OR (
        NOT :ready_only AND EXISTS (
            SELECT 1 FROM job
            WHERE state = 'blocked' AND queue IN (SELECT queue FROM served) AND task IN (SELECT task FROM known)
        )
    )
