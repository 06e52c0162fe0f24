-- The schedules that were due before then, and are not of these tasks or among those that cannot be fired.
SELECT @schedule_columns
FROM headgate.schedule
WHERE next_at IS NOT NULL AND paused_at IS NULL AND next_at < :before
    AND (task <> ALL(:tasks::text[]) OR name = ANY(:unable::text[]))
ORDER BY next_at, name
LIMIT :count
