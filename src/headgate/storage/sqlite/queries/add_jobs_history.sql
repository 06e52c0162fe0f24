-- Add steps to what is kept of the same curves; :steps is an array of steps, each an array in the order of the columns.
INSERT INTO jobs_history (
    step, queue, task, at, enqueued, started, succeeded, failed, cancelled, retried, wait_max, run_max, waits, runs
)
SELECT
    json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'), json_extract(value, '$[3]'),
    json_extract(value, '$[4]'), json_extract(value, '$[5]'), json_extract(value, '$[6]'), json_extract(value, '$[7]'),
    json_extract(value, '$[8]'), json_extract(value, '$[9]'), json_extract(value, '$[10]'), json_extract(value, '$[11]'),
    json_extract(value, '$[12]'), json_extract(value, '$[13]')
FROM json_each(:steps)
WHERE true
ON CONFLICT (step, queue, task, at) DO UPDATE SET
    enqueued = enqueued + excluded.enqueued,
    started = started + excluded.started,
    succeeded = succeeded + excluded.succeeded,
    failed = failed + excluded.failed,
    cancelled = cancelled + excluded.cancelled,
    retried = retried + excluded.retried,
    wait_max = max(wait_max, excluded.wait_max),
    run_max = max(run_max, excluded.run_max),
    waits = (
        SELECT json_group_array(total) FROM (
            SELECT sum(value) AS total FROM (
                SELECT key, value FROM json_each(jobs_history.waits)
                UNION ALL
                SELECT key, value FROM json_each(excluded.waits)
            ) GROUP BY key ORDER BY key
        )
    ),
    runs = (
        SELECT json_group_array(total) FROM (
            SELECT sum(value) AS total FROM (
                SELECT key, value FROM json_each(jobs_history.runs)
                UNION ALL
                SELECT key, value FROM json_each(excluded.runs)
            ) GROUP BY key ORDER BY key
        )
    )
