-- Whether jobs wait in a lane that draws on a limit that is not among :limits.
SELECT EXISTS (
    SELECT 1 FROM lane
    WHERE waiting > 0
        AND EXISTS (
            SELECT 1 FROM json_each(draws) AS draw
            WHERE json_extract(draw.value, '$[0]') NOT IN (SELECT value FROM json_each(:limits))
        )
)
OR EXISTS (SELECT 1 FROM job WHERE state = 'blocked' AND @draws_unknown_limits)
