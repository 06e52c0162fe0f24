-- The starts that were charged to a limit since then, oldest first: those of attempts that ended without success, and
-- the last ones of jobs that run or have succeeded.
SELECT json_group_array(json_array(key, charged_at, cost))
FROM (
    SELECT json_extract(draw.value, '$[1]') AS key, start.charged_at, coalesce(json_extract(coalesce(settled, costs), '$[' || draw.key || ']'), 1) AS cost
    FROM (
        SELECT draws, costs, charged_at, uncharged, settled FROM job
        WHERE state IN ('running', 'succeeded') AND charged_at >= :since AND draws <> '[]'
        UNION ALL
        SELECT job.draws, job.costs, attempt.charged_at, attempt.uncharged, attempt.settled
        FROM attempt JOIN job ON job.seq = attempt.job
        WHERE attempt.charged_at >= :since AND job.draws <> '[]'
    ) AS start, json_each(start.draws) AS draw
    WHERE json_extract(draw.value, '$[0]') = :limit AND (:key IS NULL OR json_extract(draw.value, '$[1]') = :key)
        AND NOT (start.uncharged >> draw.key & 1)
    ORDER BY start.charged_at
)
