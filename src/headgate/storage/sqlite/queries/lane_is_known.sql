-- Whether this node knows a lane: all its limits, and the gate of a ready job among the first of each priority.
NOT EXISTS (
    SELECT 1 FROM json_each(lane.draws) AS draw
    WHERE json_extract(draw.value, '$[0]') NOT IN (SELECT value FROM json_each(:limits))
)
AND EXISTS (
    SELECT 1
    FROM (
        SELECT gate FROM job
        WHERE job.lane = lane.id AND waiting AND delayed = 0
        ORDER BY priority DESC, run_at, seq
        LIMIT 100
    )
    WHERE gate IN (SELECT value FROM json_each(:known))
    UNION ALL
    SELECT 1
    FROM (VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9)) AS level
    WHERE EXISTS (
        SELECT 1
        FROM (
            SELECT gate FROM job
            WHERE job.lane = lane.id AND waiting AND delayed = 1
                AND priority = level.column1 AND run_at <= :now
            ORDER BY run_at, seq
            LIMIT 100
        )
        WHERE gate IN (SELECT value FROM json_each(:known))
    )
)
