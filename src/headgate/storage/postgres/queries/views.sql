-- What waiting jobs wait for, by queue. Lanes, and what has not been merged into them yet, have counted them; only those
-- that wait for their time are looked at.
WITH counted AS MATERIALIZED (
    SELECT line.queue, line.waiting, line.behind, asleep.scheduled
    FROM (
        SELECT
            coalesce(lane.id, arrived.lane) AS id,
            coalesce(lane.queue, arrived.queue) AS queue,
            coalesce(lane.waiting, 0) + coalesce(arrived.jobs, 0) AS waiting,
            lane.behind
        FROM headgate.lane
        FULL JOIN (SELECT lane, queue, sum(jobs) AS jobs FROM headgate.arrival GROUP BY lane, queue) AS arrived
            ON arrived.lane = lane.id
    ) AS line
    CROSS JOIN LATERAL (
        SELECT count(*) AS scheduled FROM headgate.job WHERE lane = line.id AND waiting AND delayed AND run_at > :now
    ) AS asleep
    WHERE line.waiting > 0
)
SELECT queue, view, sum(jobs)::bigint AS jobs
FROM (
    SELECT queue, 'scheduled' AS view, scheduled AS jobs FROM counted
    UNION ALL
    SELECT queue, CASE WHEN opens_at > :limit_now THEN 'throttled' ELSE 'ready' END, waiting - scheduled
    FROM counted LEFT JOIN headgate.bucket ON bucket.id = counted.behind
    UNION ALL
    SELECT queue, 'blocked', count(*) FROM headgate.job WHERE state = 'blocked' GROUP BY queue
) AS each
WHERE jobs > 0
GROUP BY queue, view
ORDER BY queue, view
