-- The jobs of a schedule that are not final, under its new name; locked in the order of their ids.
UPDATE headgate.job
SET schedule = :name, origin = regexp_replace(
        origin, '"schedule":"([^"\\]|\\.)*"', '"schedule":' || replace(to_json(:name::text)::text, '\', '\\')
    )
FROM (
    SELECT id FROM headgate.job WHERE schedule = :was AND finished_at IS NULL ORDER BY id FOR UPDATE
) AS own
WHERE job.id = own.id
