-- The schedules that had this name before.
SELECT @schedule_columns
FROM headgate.schedule
WHERE formerly = :name
ORDER BY name
