-- Jobs by queue and state. Waiting ones are counted by their lanes, blocked and running ones one by one; what is final is
-- counted already.
SELECT json_group_array(json_array(queue, waiting, running, succeeded, failed, cancelled))
FROM (
    SELECT
        queue,
        sum(waiting) AS waiting,
        sum(running) AS running,
        sum(succeeded) AS succeeded,
        sum(failed) AS failed,
        sum(cancelled) AS cancelled
    FROM (
        SELECT queue, sum(waiting) AS waiting, 0 AS running, 0 AS succeeded, 0 AS failed, 0 AS cancelled
        FROM lane GROUP BY queue
        UNION ALL
        SELECT queue, count(*), 0, 0, 0, 0 FROM job WHERE state = 'blocked' GROUP BY queue
        UNION ALL
        SELECT queue, 0, count(*), 0, 0, 0 FROM job WHERE state = 'running' GROUP BY queue
        UNION ALL
        SELECT queue, 0, 0, (state = 'succeeded') * jobs, (state = 'failed') * jobs, (state = 'cancelled') * jobs
        FROM final_count
    )
    GROUP BY queue
    HAVING sum(waiting + running + succeeded + failed + cancelled) > 0
    ORDER BY queue
)
