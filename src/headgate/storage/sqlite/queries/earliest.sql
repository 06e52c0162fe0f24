-- When the next delayed job of a lane is due.
SELECT min(earliest)
FROM (
    SELECT (
        SELECT min(run_at) FROM job
        WHERE lane = :lane AND waiting AND delayed = 1 AND priority = level.column1
    ) AS earliest
    FROM (VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9)) AS level
)
