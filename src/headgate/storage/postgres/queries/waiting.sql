-- What waiting jobs wait for, by queue and task; of at most so many of them.
SELECT queue, task, view, count(*) AS jobs
FROM (
    SELECT
        job.queue, job.task,
        CASE
            WHEN job.delayed AND job.run_at > :now THEN 'scheduled'
            WHEN bucket.opens_at > :limit_now THEN 'throttled'
            ELSE 'ready'
        END AS view
    FROM (SELECT queue, task, delayed, run_at, lane FROM headgate.job WHERE waiting LIMIT :most) AS job
    LEFT JOIN headgate.lane ON lane.id = job.lane
    LEFT JOIN headgate.bucket ON bucket.id = lane.behind
    UNION ALL
    SELECT queue, task, 'blocked'
    FROM (SELECT queue, task FROM headgate.job WHERE follows IS NOT NULL AND state = 'blocked' LIMIT :most) AS blocked
) AS each
GROUP BY queue, task, view
ORDER BY queue, task, view
