-- The starts of a job's attempts were charged to limits that it does not draw on any more.
UPDATE attempt SET charged_at = NULL WHERE job = (SELECT id FROM job WHERE seq = :seq) AND charged_at IS NOT NULL
