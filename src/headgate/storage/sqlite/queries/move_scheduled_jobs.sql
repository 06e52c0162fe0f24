-- The jobs of a schedule that are not final, under its new name.
UPDATE job SET schedule = :name, origin = iif(json_valid(origin), json_set(origin, '$.schedule', :name), origin)
WHERE schedule = :was AND finished_at IS NULL
