-- Failures: jobs that have failed, and attempts that did not succeed.

-- name: newest_failed [postgres]
-- Return the jobs that failed since then, the last ones first. The index of failed jobs has their instants: no job is
-- read for it.
SELECT id FROM headgate.job
WHERE failed_as = 'failed' AND failed_at >= :since::bigint
ORDER BY failed_at DESC, id DESC
LIMIT :count

-- part: final_queues(states) [sqlite]
-- The index of final jobs is by state and queue, so the first or the last ones of each are read.
WITH RECURSIVE named (state, queue) AS (
    SELECT value, (SELECT min(queue) FROM job WHERE finished_at IS NOT NULL AND state = value) FROM json_each($states)
    UNION ALL
    SELECT
        state,
        (SELECT min(queue) FROM job WHERE finished_at IS NOT NULL AND job.state = named.state AND job.queue > named.queue)
    FROM named
    WHERE queue IS NOT NULL
)

-- name: newest_failed [sqlite]
@final_queues('["failed"]')
SELECT job.id
FROM named
CROSS JOIN job ON job.rowid IN (
    SELECT newest.rowid FROM job AS newest
    WHERE newest.state = named.state AND newest.queue = named.queue AND newest.finished_at >= :since
        AND newest.finished_at IS NOT NULL
    ORDER BY newest.finished_at DESC
    LIMIT :count
)
WHERE named.queue IS NOT NULL
ORDER BY job.finished_at DESC, job.id DESC
LIMIT :count

-- name: newest_attempts
-- Return the attempts that did not succeed, the last ones first.
SELECT job, number, ended_at, error IS NOT NULL AS has_error FROM headgate.attempt ORDER BY id DESC LIMIT :count

-- name: job_errors
-- Return the last errors of these jobs, with the keys of their limits.
SELECT
    id, task, queue, CASE WHEN state = 'blocked' THEN 'waiting' ELSE state END AS state, attempt, finished_at, error,
    buckets
FROM headgate.job
WHERE id {any:ids job_id}

-- part: stored_end
job.id, job.task, job.queue, job.state, job.attempt, job.finished_at, job.batch, job.buckets, job.options,
{field:job.error.type} AS error

-- name: ended [postgres]
-- Return the jobs that became final from :at on and before :until, in the order of their ends; of those that ended at
-- :at, the ones with greater ids. The summaries of pages find them.
SELECT @stored_end
FROM headgate.job
WHERE finished_at >= :at::bigint AND finished_at < :until::bigint AND (finished_at > :at::bigint OR id > :id::bigint)
ORDER BY finished_at, id
LIMIT :count

-- part: final_states [sqlite]
'["succeeded","failed","cancelled","skipped"]'

-- name: ended [sqlite]
@final_queues(@final_states)
SELECT @stored_end
FROM named
CROSS JOIN job ON job.rowid IN (
    SELECT first.rowid FROM job AS first
    WHERE first.state = named.state AND first.queue = named.queue AND first.finished_at IS NOT NULL
        AND first.finished_at >= :at AND first.finished_at < :until AND (first.finished_at > :at OR first.id > :id)
    ORDER BY first.finished_at, first.id
    LIMIT :count
)
WHERE named.queue IS NOT NULL
ORDER BY job.finished_at, job.id
LIMIT :count
