-- What waiting jobs wait for, by queue and task; of at most so many of them.
SELECT json_group_array(json_array(queue, task, view, jobs))
FROM (
    SELECT queue, task, view, count(*) AS jobs
    FROM (
        SELECT
            job.queue, job.task,
            CASE
                WHEN job.delayed AND job.run_at > :now THEN 'scheduled'
                WHEN bucket.opens_at > :limit_now THEN 'throttled'
                ELSE 'ready'
            END AS view
        FROM (SELECT queue, task, delayed, run_at, lane FROM job WHERE waiting LIMIT :most) AS job
        LEFT JOIN lane ON lane.id = job.lane
        LEFT JOIN bucket ON bucket.id = lane.behind
        UNION ALL
        SELECT queue, task, 'blocked' FROM (SELECT queue, task FROM job WHERE follows IS NOT NULL AND state = 'blocked' LIMIT :most)
    )
    GROUP BY queue, task, view
    ORDER BY queue, task, view
)
