-- Unique keys.

-- name: unique_rivals
-- The unique keys of these jobs, which do not wait, and which other job waits there.
SELECT job.id, job.task, job.unique_key, other.id AS rival
FROM headgate.job
LEFT JOIN headgate.job AS other
    ON other.task = job.task AND other.unique_key = job.unique_key AND other.unique_key IS NOT NULL
        AND other.state IN ('waiting', 'blocked') AND other.id <> job.id
WHERE job.id {any:ids text} AND job.unique_key IS NOT NULL
ORDER BY job.id

-- name: stored_ids
-- Which of these job ids are stored.
SELECT id FROM headgate.job WHERE id {any:ids text}

-- part: standing_job
job.id, job.task, job.unique_key, job.state, job.queue, job.draws, job.terms, job.held, job.passed,
job.costs IS NOT NULL AS has_costs, job.delayed, job.run_at

-- name: standing_under
-- The jobs that are not final under these unique keys of tasks: the one that waits, and those that run.
SELECT @standing_job
FROM {rows:keys(task text, unique_key text)}
CROSS JOIN headgate.job
WHERE job.task = keys.task AND job.unique_key = keys.unique_key
    AND job.unique_key IS NOT NULL AND job.state IN ('waiting', 'blocked')
UNION ALL
SELECT @standing_job
FROM {rows:keys(task text, unique_key text)}
CROSS JOIN headgate.job
WHERE job.task = keys.task AND job.unique_key = keys.unique_key AND job.unique_key IS NOT NULL AND job.state = 'running'

-- name: lock_standing
-- A job that stood under a unique key, locked.
SELECT @standing_job FROM headgate.job WHERE id = :id {for update}

-- name: unstore_job
-- A job that this transaction has stored is not to be there after all.
DELETE FROM headgate.job WHERE id = :id

-- name: replace_job
-- A waiting job, which is locked, asks for what another one asks for that replaces it, as if it had never been tried. Its
-- fence grows, so that a claim that has read it before does not start it as it was.
UPDATE headgate.job
SET payload = :payload, queue = :queue, priority = :priority::smallint, delayed = :delayed::boolean,
    run_at = :run_at::bigint, expires_at = :expires_at::bigint,
    give_up_at = CASE WHEN state = 'waiting' THEN :give_up_at::bigint END, draws = :draws, costs = :costs,
    headers = :headers, options = :options, terms = :terms, gate = :gate, audit = :audit::smallint, lane = :lane,
    held = :held::bigint, passed = 0, attempt = 0, lost = 0, fence = fence + 1, error = NULL, progress = NULL
WHERE id = :id

-- name: forget_starts
-- The starts of a job's attempts were charged to limits that it does not draw on any more.
UPDATE headgate.attempt SET charged_at = NULL WHERE job = :id AND charged_at IS NOT NULL

-- name: keep_replacement_notes [postgres]
-- Note what replaced jobs ask for no more.
INSERT INTO headgate.replacement_note (permits, lane, draws)
SELECT permits, lane, draws FROM {rows:notes(permits json, lane text, draws json)}

-- name: replacement_notes [postgres]
-- What replaced jobs ask for no more, and has not been given back yet.
SELECT id, permits, lane, draws FROM headgate.replacement_note

-- name: take_replacement_notes [postgres]
-- What replaced jobs ask for no more, which is given back in this transaction.
DELETE FROM headgate.replacement_note
WHERE id IN (SELECT id FROM headgate.replacement_note ORDER BY id LIMIT :count {for update skip locked})
RETURNING id, permits, lane, draws
