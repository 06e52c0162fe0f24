-- Whether this node knows a lane: all its limits, and the gate of a ready job among the first of each priority.
NOT EXISTS (
    SELECT 1 FROM json_array_elements(lane.draws::json) AS draw WHERE NOT draw ->> 0 = ANY(:limits::text[])
)
AND EXISTS (
    SELECT 1
    FROM (
        SELECT gate FROM headgate.job
        WHERE job.lane = lane.id AND waiting AND NOT delayed
        ORDER BY priority DESC, run_at, id
        LIMIT 100
    ) AS first
    WHERE gate = ANY(@known)
    UNION ALL
    SELECT 1
    FROM generate_series(0, 9) AS level
    WHERE EXISTS (
        SELECT 1
        FROM (
            SELECT gate FROM headgate.job
            WHERE job.lane = lane.id AND waiting AND delayed AND priority = level AND run_at <= (SELECT now FROM instant)
            ORDER BY run_at, id
            LIMIT 100
        ) AS ripe
        WHERE gate = ANY(@known)
    )
)
