-- The revisions of these schedules.
SELECT json_group_object(name, revision) FROM schedule WHERE name IN (SELECT value FROM json_each(:names))
