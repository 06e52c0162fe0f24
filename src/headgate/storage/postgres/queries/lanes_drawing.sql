-- Lanes whose draws contain :needle, and how many jobs wait in them; also those that are not merged yet.
SELECT id, sum(waiting)::bigint AS waiting
FROM (
    SELECT id, waiting FROM headgate.lane WHERE strpos(draws, :needle) > 0
    UNION ALL
    SELECT lane, jobs FROM headgate.arrival WHERE strpos(draws, :needle) > 0
) AS each
GROUP BY id
