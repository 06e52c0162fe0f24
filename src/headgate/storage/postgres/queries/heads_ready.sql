-- The first ready jobs of each lane, those that asked for a time and are due among them: :all, or those that are known
-- to the node.
SELECT @head
FROM unnest(:lanes::text[], :counts::integer[]) AS visited (lane, most)
CROSS JOIN LATERAL (
    SELECT * FROM (
        SELECT * FROM headgate.job
        WHERE job.lane = visited.lane AND waiting AND NOT delayed AND (:all::boolean OR gate = ANY(@known)) AND @not_locked
        ORDER BY priority DESC, run_at, id
        LIMIT visited.most
    ) AS plain
    UNION ALL
    SELECT ripe.*
    FROM generate_series(0, 9) AS level
    CROSS JOIN LATERAL (
        SELECT * FROM headgate.job
        WHERE job.lane = visited.lane AND waiting AND delayed AND priority = level AND run_at <= :now
            AND (:all::boolean OR gate = ANY(@known)) AND @not_locked
        ORDER BY run_at, id
        LIMIT visited.most
    ) AS ripe
) AS job
