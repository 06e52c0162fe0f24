-- The newest starts that were charged to a limit in that time, newest first: those of attempts that ended without
-- success, and the last ones of jobs that run or have succeeded. One row of the inner part is one start.
SELECT json_group_array(json_array(key, charged_at, cost))
FROM (
    SELECT
        json_extract(draw.value, '$[1]') AS key, start.charged_at,
        coalesce(json_extract(
            iif(json_valid(coalesce(start.settled, start.costs)), coalesce(start.settled, start.costs), 'null'),
            '$[' || draw.key || ']'
        ), 1) AS cost
    FROM (
        SELECT draws, costs, charged_at, uncharged, settled
        FROM (
            SELECT draws, costs, charged_at, uncharged, settled FROM job
            WHERE state IN ('running', 'succeeded') AND charged_at BETWEEN :since AND :until AND instr(draws, :needle) > 0
            UNION ALL
            SELECT job.draws, job.costs, attempt.charged_at, attempt.uncharged, attempt.settled
            FROM attempt JOIN job ON job.id = attempt.job
            WHERE attempt.charged_at BETWEEN :since AND :until AND instr(job.draws, :needle) > 0
        )
        WHERE uncharged = 0 OR EXISTS (
            SELECT * FROM json_each(draws) AS draw
            WHERE json_extract(draw.value, '$[0]') = :limit AND NOT (uncharged >> draw.key & 1)
        )
        ORDER BY charged_at DESC, draws, coalesce(settled, costs)
        LIMIT :count OFFSET :skip
    ) AS start, json_each(start.draws) AS draw
    WHERE json_extract(draw.value, '$[0]') = :limit
    ORDER BY start.charged_at DESC
)
