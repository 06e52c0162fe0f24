-- How many jobs wait in lanes that draw on a limit.
SELECT coalesce(sum(waiting), 0) FROM lane
WHERE waiting > 0
    AND EXISTS (SELECT 1 FROM json_each(draws) AS draw WHERE json_extract(draw.value, '$[0]') = :limit)
