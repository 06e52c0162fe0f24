-- The starts that were charged to a limit since then, oldest first: those of attempts that ended without success, and
-- the last ones of jobs that run or have succeeded.
SELECT
    draw.value ->> 1 AS key,
    start.charged_at,
    coalesce((coalesce(start.settled, start.costs)::json ->> (draw.place - 1)::integer)::integer, 1) AS cost
FROM (
    SELECT draws, costs, charged_at, uncharged, settled FROM headgate.job
    WHERE state IN ('running', 'succeeded') AND charged_at >= :since AND strpos(draws, :needle) > 0
    UNION ALL
    SELECT job.draws, job.costs, attempt.charged_at, attempt.uncharged, attempt.settled
    FROM headgate.attempt JOIN headgate.job ON job.id = attempt.job
    WHERE attempt.charged_at >= :since AND strpos(job.draws, :needle) > 0
) AS start
CROSS JOIN LATERAL json_array_elements(start.draws::json) WITH ORDINALITY AS draw (value, place)
WHERE draw.value ->> 0 = :limit AND (:key::text IS NULL OR draw.value ->> 1 = :key)
    AND start.uncharged >> (draw.place - 1)::integer & 1 = 0
ORDER BY start.charged_at
