-- Charts: what nodes count, and what the store counts itself because no node does.

-- part: added_up(counts) [postgres]
-- Two histograms as one. One that is not JSON counts as empty, so that it does not fail the whole statement.
(
    SELECT coalesce(json_agg(coalesce(mine::bigint, 0) + coalesce(theirs::bigint, 0) ORDER BY place)::text, '[]')
    FROM ROWS FROM (
        json_array_elements_text(kept.$counts::json), json_array_elements_text(excluded.$counts::json)
    ) WITH ORDINALITY AS both_of (mine, theirs, place)
)

-- part: added_up(counts) [sqlite]
(
    SELECT json_group_array(total) FROM (
        SELECT sum(value) AS total FROM (
            SELECT key, value FROM json_each(iif(json_valid(kept.$counts), kept.$counts, '[]'))
            UNION ALL
            SELECT key, value FROM json_each(iif(json_valid(excluded.$counts), excluded.$counts, '[]'))
        ) GROUP BY key ORDER BY key
    )
)

-- part: history_columns
step, queue, task, at, enqueued, started, succeeded, failed, cancelled, skipped, retried, wait_max, run_max, waits, runs

-- name: add_jobs_history
-- Add steps to the stored ones of the same curves. They are added in one order, so that nodes that do it at once wait
-- for each other in turn.
INSERT INTO headgate.jobs_history AS kept (@history_columns)
SELECT @history_columns
FROM {rows:steps(
    step integer, queue text, task text, at bigint, enqueued bigint, started bigint, succeeded bigint, failed bigint,
    cancelled bigint, skipped bigint, retried bigint, wait_max bigint, run_max bigint, waits json, runs json
)}
WHERE true
ON CONFLICT (step, queue, task, at) DO UPDATE SET
    enqueued = kept.enqueued + excluded.enqueued,
    started = kept.started + excluded.started,
    succeeded = kept.succeeded + excluded.succeeded,
    failed = kept.failed + excluded.failed,
    cancelled = kept.cancelled + excluded.cancelled,
    skipped = kept.skipped + excluded.skipped,
    retried = kept.retried + excluded.retried,
    wait_max = {greatest}(kept.wait_max, excluded.wait_max),
    run_max = {greatest}(kept.run_max, excluded.run_max),
    waits = @added_up(waits),
    runs = @added_up(runs)

-- name: add_limit_history
-- Add charges to the stored steps of the same curves; in one order, as in add_jobs_history.
INSERT INTO headgate.limit_history AS kept (step, limit_name, of_all, key, at, used, unlimited)
SELECT step, limit_name, key IS NULL, coalesce(key, ''), at, used, unlimited
FROM {rows:steps(step integer, limit_name text, key text, at bigint, used bigint, unlimited bigint)}
WHERE true
ON CONFLICT (step, limit_name, of_all, key, at) DO UPDATE SET
    used = kept.used + excluded.used, unlimited = kept.unlimited + excluded.unlimited

-- name: note_flush
-- Note a write of a process to the charts, unless this or a later one is noted.
INSERT INTO headgate.history_flush AS last (writer, number, portion, at)
VALUES (:writer::text, :number::bigint, :portion::integer, :now::bigint)
ON CONFLICT (writer) DO UPDATE SET number = excluded.number, portion = excluded.portion, at = excluded.at
WHERE (excluded.number, excluded.portion) > (last.number, last.portion)

-- name: jobs_history
-- Return the steps of one curve, in order.
SELECT @history_columns
FROM headgate.jobs_history
WHERE step = :step::integer AND queue = :queue::text AND task = :task::text
    AND at BETWEEN :since::bigint AND :now::bigint
ORDER BY at

-- name: task_history
-- Return the steps of one task in each of its queues, in order.
SELECT @history_columns
FROM headgate.jobs_history
WHERE step = :step::integer AND task = :task::text AND at BETWEEN :since::bigint AND :now::bigint
ORDER BY at, queue

-- name: recent_history
-- Return the newest steps of all tasks in all queues since then, the last ones first.
SELECT @history_columns
FROM headgate.jobs_history
WHERE step = :step::integer AND at BETWEEN :since::bigint AND :now::bigint AND task <> ''
ORDER BY at DESC
LIMIT :most::bigint

-- name: limit_history
-- Return the steps of one curve, in order.
SELECT step, limit_name AS "limit", CASE WHEN of_all THEN NULL ELSE key END AS key, at, used, unlimited
FROM headgate.limit_history
WHERE step = :step::integer AND limit_name = :limit::text AND of_all = :of_all::boolean AND key = :key::text
    AND at BETWEEN :since::bigint AND :now::bigint
ORDER BY at

-- name: prune_history_flushes
-- Delete the notes of processes that have written nothing since then.
DELETE FROM headgate.history_flush WHERE at < :before::bigint

-- part: prune_steps(table) [postgres]
-- Delete steps that began before then; steps that another node deletes or adds to at this moment are skipped. They are
-- locked when they are found, and deleted by their place on disk: by their keys, the planner might read by age.
DELETE FROM headgate.$table
WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM headgate.$table
    WHERE step = :step::integer AND at < :before::bigint
    LIMIT :count::bigint
    FOR UPDATE SKIP LOCKED
))

-- part: prune_steps(table) [sqlite]
DELETE FROM $table
WHERE (@key_of_$table) IN (SELECT @key_of_$table FROM $table WHERE step = :step AND at < :before LIMIT :count)

-- part: key_of_jobs_history
step, queue, task, at

-- part: key_of_limit_history
step, limit_name, of_all, key, at

-- name: prune_jobs_history
@prune_steps(jobs_history)

-- name: prune_limit_history
@prune_steps(limit_history)

-- name: gather_history [postgres]
-- Add notes to the steps of all lengths: of their queues and tasks, of their queues, and of all together. Two nodes
-- that do it at once take different notes; in one order, as in add_jobs_history.
WITH taken AS (
    DELETE FROM headgate.history_note
    WHERE ctid = ANY (ARRAY(SELECT ctid FROM headgate.history_note LIMIT :count::bigint FOR UPDATE SKIP LOCKED))
    RETURNING queue, task, at, enqueued, failed, cancelled, skipped
), added AS (
    INSERT INTO headgate.jobs_history AS kept (@history_columns)
    SELECT
        length.step, curve.queue, curve.task, taken.at - taken.at % (length.step * 1000000::bigint), sum(taken.enqueued),
        0, 0, sum(taken.failed), sum(taken.cancelled), sum(taken.skipped), 0, 0, 0, '[]', '[]'
    FROM taken
    CROSS JOIN unnest(:lengths::integer[]) AS length (step)
    CROSS JOIN LATERAL (VALUES (taken.queue, taken.task), (taken.queue, ''), ('', '')) AS curve (queue, task)
    GROUP BY 1, 2, 3, 4
    ORDER BY length.step, curve.queue COLLATE "C", curve.task COLLATE "C", 4
    ON CONFLICT (step, queue, task, at) DO UPDATE SET
        enqueued = kept.enqueued + excluded.enqueued,
        failed = kept.failed + excluded.failed,
        cancelled = kept.cancelled + excluded.cancelled,
        skipped = kept.skipped + excluded.skipped
)
SELECT count(*) FROM taken

-- part: enqueued
-- Jobs that this transaction, which may belong to the caller and may be rolled back, enqueues.
SELECT queue, task, 1 AS enqueued, 0 AS failed, 0 AS cancelled, 0 AS skipped FROM {rows:jobs(queue text, task text)}

-- part: unrun
-- Jobs that have become final and that no attempt counts.
SELECT
    queue, task, 0 AS enqueued, (state = 'failed')::integer AS failed, (state = 'cancelled')::integer AS cancelled,
    (state = 'skipped')::integer AS skipped
FROM headgate.job
WHERE id {any:ids job_id}

-- name: note(jobs: enqueued unrun) [postgres]
-- Note these jobs. Notes are added up later, so this never waits for a lock.
INSERT INTO headgate.history_note (queue, task, at, enqueued, failed, cancelled, skipped)
SELECT queue, task, :now::bigint, sum(enqueued), sum(failed), sum(cancelled), sum(skipped)
FROM (@$jobs) AS jobs
GROUP BY queue, task

-- name: note(jobs: enqueued unrun) [sqlite]
-- Count these jobs in steps of all :lengths (seconds): of their queues and tasks, of their queues, and of all together.
INSERT INTO jobs_history (@history_columns)
SELECT
    length.value AS step, iif(curve.has_queue, jobs.queue, '') AS queue, iif(curve.has_task, jobs.task, '') AS task,
    :now - :now % (length.value * 1000000), sum(enqueued), 0, 0, sum(failed), sum(cancelled), sum(skipped), 0, 0, 0, '[]', '[]'
FROM (@$jobs) AS jobs
CROSS JOIN json_each(:lengths) AS length
CROSS JOIN (SELECT 1 AS has_queue, 1 AS has_task UNION ALL SELECT 1, 0 UNION ALL SELECT 0, 0) AS curve
GROUP BY 1, 2, 3
ON CONFLICT (step, queue, task, at) DO UPDATE SET
    enqueued = enqueued + excluded.enqueued, failed = failed + excluded.failed, cancelled = cancelled + excluded.cancelled,
    skipped = skipped + excluded.skipped
