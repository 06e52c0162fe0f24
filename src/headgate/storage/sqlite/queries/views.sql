-- What waiting jobs wait for, by queue. Lanes have counted them; only those that wait for their time are looked at.
WITH counted AS MATERIALIZED (
    SELECT
        queue, waiting, behind,
        CASE
            WHEN wakes_at IS NULL THEN 0
            ELSE (
                SELECT count(*) FROM job
                WHERE lane = lane.id AND waiting AND delayed = 1 AND run_at > :now
            )
        END AS scheduled
    FROM lane
    WHERE waiting > 0
)
SELECT json_group_array(json_array(queue, view, jobs))
FROM (
    SELECT queue, view, sum(jobs) AS jobs
    FROM (
        SELECT queue, 'scheduled' AS view, scheduled AS jobs FROM counted
        UNION ALL
        SELECT queue, CASE WHEN opens_at > :limit_now THEN 'throttled' ELSE 'ready' END, waiting - scheduled
        FROM counted LEFT JOIN bucket ON bucket.id = counted.behind
        UNION ALL
        SELECT queue, 'blocked', count(*) FROM job WHERE state = 'blocked' GROUP BY queue
    )
    WHERE jobs > 0
    GROUP BY queue, view
    ORDER BY queue, view
)
