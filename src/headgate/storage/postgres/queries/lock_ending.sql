-- Those of the jobs of these ids that run under a node, locked; but for those that somebody else has locked.
SELECT @owned_job
FROM headgate.job
WHERE id = ANY(:ids::text[]) AND finished_at IS NULL AND NOT waiting AND node = :node
ORDER BY id
FOR UPDATE SKIP LOCKED
