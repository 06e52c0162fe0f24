-- What is left of these lanes without the jobs that are gone from them: whether there is one that asked for no time, and
-- when the next delayed one is due.
SELECT
    wanted.lane,
    EXISTS (
        SELECT 1 FROM headgate.job WHERE job.lane = wanted.lane AND waiting AND NOT delayed AND id <> ALL(:gone::text[])
    ) AS has_ready,
    (
        SELECT min(earliest.run_at)
        FROM generate_series(0, 9) AS level
        CROSS JOIN LATERAL (
            SELECT run_at FROM headgate.job
            WHERE job.lane = wanted.lane AND waiting AND delayed AND priority = level AND id <> ALL(:gone::text[])
            ORDER BY run_at
            LIMIT 1
        ) AS earliest
    ) AS earliest
FROM unnest(:lanes::text[]) AS wanted (lane)
