-- How many jobs wait in lanes that draw on a limit.
SELECT count(*)
FROM headgate.job
WHERE waiting AND lane IN (
    SELECT id FROM headgate.lane WHERE strpos(draws, :needle) > 0
    UNION
    SELECT lane FROM headgate.arrival WHERE strpos(draws, :needle) > 0
)
