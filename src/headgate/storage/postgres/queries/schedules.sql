-- The schedule of that name, or a page of schedules by name.
SELECT @schedule_columns
FROM headgate.schedule
WHERE name > :after AND (:name::text IS NULL OR name = :name)
ORDER BY name
LIMIT :count
