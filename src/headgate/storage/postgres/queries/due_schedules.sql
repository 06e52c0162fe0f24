-- The schedules of these tasks whose next occurrence has come, the longest due first.
SELECT @schedule_columns
FROM headgate.schedule
WHERE next_at IS NOT NULL AND paused_at IS NULL AND next_at <= :now
    AND task = ANY(:tasks::text[]) AND name <> ALL(:unable::text[])
ORDER BY next_at, name
LIMIT :count
