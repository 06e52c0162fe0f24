-- How many jobs wait in lanes that draw on a limit.
SELECT (
    SELECT count(*)
    FROM headgate.job
    WHERE waiting AND lane IN (
        SELECT id FROM headgate.lane WHERE strpos(draws, :needle) > 0
        UNION
        SELECT lane FROM headgate.arrival WHERE strpos(draws, :needle) > 0
    )
) + (
    SELECT count(*) FROM headgate.job WHERE state = 'blocked' AND strpos(draws, :needle) > 0
)
