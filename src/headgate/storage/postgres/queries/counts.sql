-- Jobs by queue and state. Waiting ones are counted by their lanes, and by what has not been merged into them yet.
-- What is final has to be looked at one by one, and is left out unless it is asked for.
SELECT
    queue, sum(waiting)::bigint, sum(running)::bigint, sum(succeeded)::bigint, sum(failed)::bigint, sum(cancelled)::bigint
FROM (
    SELECT queue, sum(waiting) AS waiting, 0 AS running, 0 AS succeeded, 0 AS failed, 0 AS cancelled
    FROM headgate.lane GROUP BY queue
    UNION ALL
    SELECT queue, sum(jobs), 0, 0, 0, 0 FROM headgate.arrival GROUP BY queue
    UNION ALL
    SELECT queue, count(*), 0, 0, 0, 0 FROM headgate.job WHERE state = 'blocked' GROUP BY queue
    UNION ALL
    SELECT queue, 0, count(*), 0, 0, 0 FROM headgate.job WHERE state = 'running' GROUP BY queue
    UNION ALL
    SELECT
        queue, 0, 0, count(*) FILTER (WHERE state = 'succeeded'), count(*) FILTER (WHERE state = 'failed'),
        count(*) FILTER (WHERE state = 'cancelled')
    FROM headgate.job WHERE finished_at IS NOT NULL AND :finals::boolean GROUP BY queue
) AS counted
GROUP BY queue
HAVING sum(waiting + running + succeeded + failed + cancelled) > 0
ORDER BY queue
