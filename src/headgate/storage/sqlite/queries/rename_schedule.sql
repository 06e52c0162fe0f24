-- Give a schedule another name, unless there is one of that name.
UPDATE schedule SET name = :name
WHERE name = :was AND revision = :replaces AND NOT EXISTS (SELECT 1 FROM schedule WHERE name = :name)
