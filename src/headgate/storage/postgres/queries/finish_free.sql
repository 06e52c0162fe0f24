-- As finish_plain, but what somebody else has locked is left out, so that nobody waits for one transaction of a user's.
WITH free AS (
    SELECT id FROM headgate.job WHERE id = ANY(:ids::text[]) AND node = :node ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE headgate.job
SET state = ended.state, result = ended.result, error = NULL, finished_at = :now, charged_at = coalesce(ended.charged_at, job.charged_at)
FROM unnest(:ids::text[], :fences::integer[], :states::text[], :results::text[], :charged_at::bigint[])
    AS ended (id, fence, state, result, charged_at)
JOIN free ON free.id = ended.id
WHERE job.id = ended.id AND job.fence = ended.fence AND job.finished_at IS NULL AND NOT job.waiting AND job.node = :node AND job.held = 0
    AND NOT job.is_followed AND job.batch IS NULL
RETURNING job.id
