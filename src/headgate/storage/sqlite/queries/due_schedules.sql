-- The schedules of these tasks whose next occurrence has come, the longest due first.
SELECT json_group_array(
    json_array(
        name, json(call), json(rules), json_array(started_at, next_at, last_at, runs, open), last_job, paused_at, revision,
        json(iif(is_declared, 'true', 'false')), formerly, skipped, skipped_at
    )
)
FROM (
    SELECT * FROM schedule
    WHERE next_at IS NOT NULL AND paused_at IS NULL AND next_at <= :now
        AND task IN (SELECT value FROM json_each(:tasks)) AND name NOT IN (SELECT value FROM json_each(:unable))
    ORDER BY next_at, name
    LIMIT :count
)
