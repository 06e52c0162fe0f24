-- Count in the charts what nobody else counts; :notes is an array of [queue, task, enqueued, failed, cancelled].
INSERT INTO jobs_history (
    step, queue, task, at, enqueued, started, succeeded, failed, cancelled, retried, wait_max, run_max, waits, runs
)
SELECT
    length.value AS step, iif(curve.has_queue, json_extract(note.value, '$[0]'), '') AS queue,
    iif(curve.has_task, json_extract(note.value, '$[1]'), '') AS task, :now - :now % (length.value * 1000000),
    sum(json_extract(note.value, '$[2]')), 0, 0, sum(json_extract(note.value, '$[3]')),
    sum(json_extract(note.value, '$[4]')), 0, 0, 0, '[]', '[]'
FROM json_each(:notes) AS note
CROSS JOIN json_each(:lengths) AS length
CROSS JOIN (SELECT 1 AS has_queue, 1 AS has_task UNION ALL SELECT 1, 0 UNION ALL SELECT 0, 0) AS curve
GROUP BY 1, 2, 3
ON CONFLICT (step, queue, task, at) DO UPDATE SET
    enqueued = enqueued + excluded.enqueued,
    failed = failed + excluded.failed,
    cancelled = cancelled + excluded.cancelled
