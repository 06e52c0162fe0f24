-- The starts of a job's attempts were charged to what it asked before, if it asks for something else now.
UPDATE headgate.attempt SET charged_at = NULL
WHERE job = :id AND charged_at IS NOT NULL AND EXISTS (
    SELECT 1 FROM headgate.job WHERE id = :id AND (draws <> :draws OR costs IS DISTINCT FROM :costs)
)
