-- Running jobs that hold no permits, are not followed and in no batch become final, where they still are the node's under
-- that fence. The charge of their start is settled, if it is given.
-- A user's transaction may hold one with a unique key, to let another follow it: of these only those that are free.
WITH free AS (
    SELECT id FROM headgate.job
    WHERE id = ANY(:ids::text[]) AND node = :node AND unique_key IS NOT NULL
    ORDER BY id
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE headgate.job
SET state = ended.state, result = ended.result, error = NULL, finished_at = :now, charged_at = coalesce(ended.charged_at, job.charged_at)
FROM unnest(:ids::text[], :fences::integer[], :states::text[], :results::text[], :charged_at::bigint[])
    AS ended (id, fence, state, result, charged_at)
WHERE job.id = ended.id AND job.fence = ended.fence AND job.finished_at IS NULL AND NOT job.waiting AND job.node = :node AND job.held = 0
    AND NOT job.is_followed AND job.batch IS NULL
    AND (job.unique_key IS NULL OR job.id IN (SELECT id FROM free))
RETURNING job.id
