-- What is known of those of these jobs that run under a node.
SELECT @owned_job
FROM headgate.job
WHERE id = ANY(:ids::text[]) AND finished_at IS NULL AND NOT waiting AND node = :node
ORDER BY id
