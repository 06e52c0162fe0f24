-- Which limits jobs wait for, as the draws of their lanes without the keys.
SELECT DISTINCT limits FROM headgate.lane WHERE gated AND (since IS NOT NULL OR wakes_at IS NOT NULL)
UNION
SELECT json_agg(json_build_array(draw ->> 0))::text
FROM headgate.job CROSS JOIN json_array_elements(draws::json) AS draw
WHERE state = 'blocked'
HAVING count(*) > 0
