-- Count the jobs of a schedule that are not final: some may be of an earlier one of its name.
UPDATE schedule SET open = (SELECT count(*) FROM job WHERE schedule = :name AND finished_at IS NULL)
WHERE name = :name
