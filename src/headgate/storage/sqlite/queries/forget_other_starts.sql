-- The starts of a job's attempts were charged to what it asked before, if it asks for something else now.
UPDATE attempt SET charged_at = NULL
WHERE job = :seq AND charged_at IS NOT NULL AND EXISTS (
    SELECT 1 FROM job WHERE seq = :seq AND (draws <> :draws OR costs IS NOT :costs)
)
