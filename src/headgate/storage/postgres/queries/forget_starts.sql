-- The starts of a job's attempts were charged to limits that it does not draw on any more.
UPDATE headgate.attempt SET charged_at = NULL WHERE job = :id AND charged_at IS NOT NULL
