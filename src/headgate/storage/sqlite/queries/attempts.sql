-- The attempts of a job that did not succeed, oldest first.
SELECT json_group_array(json_array(number, node, started_at, ended_at, outcome, json(error)))
FROM (
    SELECT attempt.* FROM attempt
    WHERE job = :id
    ORDER BY attempt.rowid
)
