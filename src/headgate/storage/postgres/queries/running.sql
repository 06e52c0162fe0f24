-- What is known of all jobs that run under a node.
SELECT @owned_job
FROM headgate.job
WHERE state = 'running' AND node = :node
ORDER BY id
