-- Where a waiting job stands in its lane.
SELECT
    (
        SELECT CASE WHEN count(*) < 100000 THEN count(*) + 1 END
        FROM (
            SELECT 1
            FROM (VALUES (false), (true)) AS kind (delayed)
            CROSS JOIN LATERAL (
                SELECT 1 FROM headgate.job AS other
                WHERE other.lane = job.lane AND other.waiting AND other.delayed = kind.delayed
                    AND other.priority > job.priority
                UNION ALL
                SELECT 1 FROM headgate.job AS other
                WHERE other.lane = job.lane AND other.waiting AND other.delayed = kind.delayed
                    AND other.priority = job.priority AND (other.run_at, other.id) < (job.run_at, job.id)
            ) AS other
            LIMIT 100000
        ) AS first
    ) AS place,
    coalesce(lane.waiting, 0) + coalesce((SELECT sum(jobs) FROM headgate.arrival WHERE lane = job.lane), 0)::bigint AS waiting,
    lane.behind IS NULL
    AND (lane.since IS NOT NULL OR EXISTS (SELECT 1 FROM headgate.arrival WHERE lane = job.lane AND is_ready)) AS is_due,
    bucket.limit_name,
    bucket.key,
    job.queue,
    job.draws,
    job.costs,
    job.terms,
    job.held,
    job.passed
FROM headgate.job
LEFT JOIN headgate.lane ON lane.id = job.lane
LEFT JOIN headgate.bucket ON bucket.id = lane.behind
WHERE job.id = :id AND job.state = 'waiting'
