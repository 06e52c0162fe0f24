-- How many jobs wait in lanes that draw on a limit, or will when what they follow is final.
SELECT (
    SELECT coalesce(sum(waiting), 0) FROM lane
    WHERE waiting > 0
        AND EXISTS (SELECT 1 FROM json_each(draws) AS draw WHERE json_extract(draw.value, '$[0]') = :limit)
) + (
    SELECT count(*) FROM job
    WHERE state = 'blocked'
        AND EXISTS (SELECT 1 FROM json_each(draws) AS draw WHERE json_extract(draw.value, '$[0]') = :limit)
)
