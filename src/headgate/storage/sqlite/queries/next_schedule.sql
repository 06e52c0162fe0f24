-- When the first schedule of these tasks is due that is not due yet.
SELECT (
    SELECT next_at FROM schedule
    WHERE next_at IS NOT NULL AND paused_at IS NULL AND next_at > :now
        AND task IN (SELECT value FROM json_each(:tasks)) AND name NOT IN (SELECT value FROM json_each(:unable))
    ORDER BY next_at
    LIMIT 1
)
