-- Charts: what no node counts.

-- name: note_unrun [postgres]
-- Note jobs that have become final and that no attempt counts. Notes are added up later, so this waits for nobody.
INSERT INTO headgate.history_note (queue, task, at, enqueued, failed, cancelled)
SELECT queue, task, :now::bigint, 0, count(*) FILTER (WHERE state = 'failed'), count(*) FILTER (WHERE state = 'cancelled')
FROM headgate.job
WHERE id {any:ids text}
GROUP BY queue, task

-- name: note_unrun [sqlite]
-- Count jobs that have become final and that no attempt counts, in steps of all :lengths (seconds).
INSERT INTO jobs_history (
    step, queue, task, at, enqueued, started, succeeded, failed, cancelled, retried, wait_max, run_max, waits, runs
)
SELECT
    length.value AS step, iif(curve.has_queue, ended.queue, '') AS queue, iif(curve.has_task, ended.task, '') AS task,
    :now - :now % (length.value * 1000000), 0, 0, 0, sum(ended.state = 'failed'), sum(ended.state = 'cancelled'), 0, 0, 0,
    '[]', '[]'
FROM json_each(:ids) AS id
CROSS JOIN job AS ended ON ended.id = id.value
CROSS JOIN json_each(:lengths) AS length
CROSS JOIN (SELECT 1 AS has_queue, 1 AS has_task UNION ALL SELECT 1, 0 UNION ALL SELECT 0, 0) AS curve
GROUP BY 1, 2, 3
ON CONFLICT (step, queue, task, at) DO UPDATE SET failed = failed + excluded.failed, cancelled = cancelled + excluded.cancelled
