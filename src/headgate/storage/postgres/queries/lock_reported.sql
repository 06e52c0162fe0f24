-- Which of these attempts are still the node's, locked, so that what they say is not mixed with what others do;
-- but for those that somebody else has locked.
SELECT job.id
FROM headgate.job
JOIN unnest(:ids::text[], :fences::integer[]) AS said (id, fence) ON job.id = said.id AND job.fence = said.fence
WHERE job.id = ANY(:ids::text[]) AND job.node = :node AND job.finished_at IS NULL AND NOT job.waiting
ORDER BY job.id
FOR NO KEY UPDATE OF job SKIP LOCKED
