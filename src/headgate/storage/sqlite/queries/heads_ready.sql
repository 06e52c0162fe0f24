-- The first :count ready jobs of each lane, those that asked for a time and are due among them: :all, or those that are
-- known to the node.
SELECT json_group_array(
    json_array(
        job.seq, lane, job.id, task, queue, CAST(payload AS TEXT), priority, run_at, attempt, fence, lost, enqueued_at, expires_at,
        json(costs), json(headers), json(options), json(origin), json(terms), held, passed,
        give_up_at, CASE WHEN held THEN json(draws) END, gate
    )
)
FROM json_each(:lanes) AS visited
JOIN job ON job.seq IN (
    SELECT seq FROM (
        SELECT seq FROM job
        WHERE lane = visited.value AND waiting AND delayed = 0
            AND (:all OR gate IN (SELECT value FROM json_each(:known)))
        ORDER BY priority DESC, run_at, seq
        LIMIT :count
    )
    UNION ALL
    SELECT ripe.seq
    FROM (VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9)) AS level
    JOIN job AS ripe ON ripe.seq IN (
        SELECT seq FROM job
        WHERE lane = visited.value AND waiting AND delayed = 1
            AND priority = level.column1 AND run_at <= :now
            AND (:all OR gate IN (SELECT value FROM json_each(:known)))
        ORDER BY run_at, seq
        LIMIT :count
    )
)
