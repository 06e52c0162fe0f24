-- The first ready jobs of each lane whose task is known, those that asked for a time and are due among them.
SELECT @head
FROM unnest(:lanes::bytea[], :counts::integer[]) AS visited (lane, most)
CROSS JOIN LATERAL (
    SELECT * FROM (
        SELECT * FROM headgate.job
        WHERE job.lane = visited.lane AND waiting AND NOT delayed AND task = ANY(:tasks::text[])
        ORDER BY priority DESC, run_at, id
        LIMIT visited.most
    ) AS plain
    UNION ALL
    SELECT ripe.*
    FROM generate_series(0, 9) AS level
    CROSS JOIN LATERAL (
        SELECT * FROM headgate.job
        WHERE job.lane = visited.lane AND waiting AND delayed AND priority = level AND run_at <= :now
            AND task = ANY(:tasks::text[])
        ORDER BY run_at, id
        LIMIT visited.most
    ) AS ripe
) AS job
