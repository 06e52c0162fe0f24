-- The newest starts that were charged to a limit in that time, newest first: those of attempts that ended without
-- success, and the last ones of jobs that run or have succeeded. One row of the inner part is one start.
SELECT
    draw.value ->> 1 AS key,
    start.charged_at,
    coalesce((coalesce(start.settled, start.costs)::json ->> (draw.place - 1)::integer)::integer, 1) AS cost
FROM (
    SELECT draws, costs, charged_at, uncharged, settled
    FROM (
        SELECT draws, costs, charged_at, uncharged, settled FROM headgate.job
        WHERE state IN ('running', 'succeeded') AND charged_at BETWEEN :since AND :until AND strpos(draws, :needle) > 0
        UNION ALL
        SELECT job.draws, job.costs, attempt.charged_at, attempt.uncharged, attempt.settled
        FROM headgate.attempt JOIN headgate.job ON job.id = attempt.job
        WHERE attempt.charged_at BETWEEN :since AND :until AND strpos(job.draws, :needle) > 0
    ) AS charged
    WHERE uncharged = 0 OR EXISTS (
        SELECT FROM json_array_elements(draws::json) WITH ORDINALITY AS draw (value, place)
        WHERE draw.value ->> 0 = :limit AND uncharged >> (draw.place - 1)::integer & 1 = 0
    )
    ORDER BY charged_at DESC, draws, coalesce(settled, costs)
    LIMIT :count OFFSET :skip
) AS start
CROSS JOIN LATERAL json_array_elements(start.draws::json) WITH ORDINALITY AS draw (value, place)
WHERE draw.value ->> 0 = :limit
ORDER BY start.charged_at DESC
