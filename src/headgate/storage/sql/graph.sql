-- The jobs and batches that are connected with each other.

-- name: graph_nodes
-- Return those of these ids that are jobs, batches or joins, with their batches and what they follow. The state of a
-- waiting job is what it waits for.
SELECT
    job.id, job.task,
    CASE
        WHEN job.state <> 'waiting' THEN job.state
        WHEN job.delayed AND job.run_at > :now THEN 'scheduled'
        WHEN bucket.opens_at > :limit_now THEN 'throttled'
        ELSE 'ready'
    END AS state,
    job.batch, job.finished_at, job.follows, {field:job.origin.on} AS needs, NULL AS total, NULL AS done, NULL AS name,
    false AS is_join
FROM headgate.job
LEFT JOIN headgate.lane ON lane.id = job.lane AND job.waiting
LEFT JOIN headgate.bucket ON bucket.id = lane.behind
WHERE job.id {any:ids job_id}
UNION ALL
SELECT id, NULL, @batch_state, batch, finished_at, NULL, NULL, total, total - pending, name, is_join
FROM headgate.batch
WHERE id {any:ids job_id}

-- name: graph_followers
-- Return up to :count jobs that follow one of these.
SELECT id FROM headgate.job WHERE follows {any:ids job_id} LIMIT :count

-- name: graph_joins
-- Return which leaders the joins among these count, and which joins count one of these. Up to :count of each: what there
-- is of a larger number is not read.
SELECT leader AS id, batch AS counted_by
FROM (SELECT batch, leader FROM headgate.awaited_leader WHERE batch {any:ids job_id} LIMIT :count) AS counted
UNION ALL
SELECT leader, batch
FROM (SELECT batch, leader FROM headgate.awaited_leader WHERE leader {any:ids job_id} LIMIT :count) AS counting

-- name: graph_members
-- Return those of the first :most jobs of a batch that follow something or are followed, and the batches in it.
SELECT id
FROM (SELECT id, follows, is_followed FROM headgate.job WHERE batch IS NOT NULL AND batch = :id::job_id LIMIT :most) AS member
WHERE follows IS NOT NULL OR is_followed
UNION ALL
SELECT id FROM headgate.batch WHERE batch = :id::job_id
LIMIT :count

-- name: graph_counts
-- Return how many of the first :most jobs of a batch are in each state, by task, and whether they follow nothing and are
-- not followed; with the first and the last id of each. Those that are ready or throttled are waiting.
SELECT task, state, is_plain, count(*) AS jobs, min(id) AS first, max(id) AS last
FROM (
    SELECT
        id, task,
        CASE WHEN state = 'waiting' AND delayed AND run_at > :now THEN 'scheduled' ELSE state END AS state,
        (follows IS NULL AND NOT is_followed) AS is_plain
    FROM headgate.job
    WHERE batch IS NOT NULL AND batch = :id::job_id
    LIMIT :most
) AS member
GROUP BY task, state, is_plain
ORDER BY task, state, is_plain
LIMIT :count
