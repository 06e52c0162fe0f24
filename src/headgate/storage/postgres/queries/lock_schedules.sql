-- Those of these schedules that are as they were read, and that nobody else is at; locked.
SELECT name
FROM headgate.schedule
JOIN unnest(:names::text[], :revisions::bigint[]) AS wanted (name, revision) USING (name, revision)
ORDER BY name
FOR UPDATE OF schedule SKIP LOCKED
