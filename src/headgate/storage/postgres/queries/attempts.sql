-- The attempts of a job that did not succeed, oldest first.
SELECT number, node, started_at, ended_at, outcome, error FROM headgate.attempt WHERE job = :id ORDER BY id
