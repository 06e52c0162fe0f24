-- Unique keys.

-- part: looked_up(table, condition) [postgres]
-- The rows of a table that are looked up for each row before it. A join may be planned as a read of a whole index, if few
-- jobs had unique keys when the table was analyzed.
CROSS JOIN LATERAL (SELECT * FROM headgate.$table WHERE $condition OFFSET 0) AS $table

-- part: looked_up(table, condition) [sqlite]
CROSS JOIN $table ON $condition

-- name: unique_rivals
-- Return the unique keys of these jobs, which are not waiting, and the other job that is waiting under each.
SELECT
    id, task, unique_key,
    (
        SELECT other.id FROM headgate.job AS other
        WHERE other.task = job.task AND other.unique_key = job.unique_key AND other.unique_key IS NOT NULL
            AND (other.waiting OR other.blocked) AND other.id <> job.id
        LIMIT 1
    ) AS rival
FROM headgate.job
WHERE id {any:ids job_id} AND {no index}unique_key IS NOT NULL
ORDER BY id

-- name: stored_ids
-- Return which of these job ids are stored.
SELECT id FROM headgate.job WHERE id {any:ids job_id}

-- name: own_ids
-- Return the texts of ids that callers chose, by their numbers.
SELECT id, own_id FROM headgate.job WHERE id {any:numbers bigint} AND coalesce(own_id, '') <> ''

-- name: stored_jobs
-- Return those of these jobs that are stored: of which tasks, and by which enqueue.
SELECT id, own_id, task, enqueued_at, enqueued_by FROM headgate.job WHERE id {any:ids job_id}

-- part: is_key
job.task = keys.task AND job.unique_key = keys.unique_key

-- name: jobs_under_keys
-- Return the jobs that are not final under these unique keys of tasks, the waiting one and the running ones; and as a
-- final one the job for which a key stays taken.
SELECT @locked_job
FROM {rows:keys(task text, unique_key text)}
@looked_up(job, @is_key AND job.unique_key IS NOT NULL AND (waiting OR blocked))
UNION ALL
SELECT @locked_job
FROM {rows:keys(task text, unique_key text)}
@looked_up(job, @is_key AND holds_key)
UNION ALL
-- By the key, and not by the index of times.
SELECT
    reserved_key.job, '', '[]', NULL, 0, 0, false, reserved_key.until, 0, false, NULL,
    reserved_key.task, reserved_key.unique_key, 'succeeded', false, false, NULL, 0, NULL, NULL
FROM {rows:keys(task text, unique_key text)}
@looked_up(reserved_key, reserved_key.task = keys.task AND reserved_key.unique_key = keys.unique_key AND until + 0 > :now)

-- name: keep_keys
-- Keep unique keys taken until then, for jobs that have just been stored under them.
INSERT INTO headgate.reserved_key (task, unique_key, job, until)
SELECT task, unique_key, job, until FROM {rows:kept(task text, unique_key text, job job_id, until bigint)}
WHERE true
ON CONFLICT (task, unique_key) DO UPDATE SET job = excluded.job, until = excluded.until

-- name: cancel_running
-- Request the cancellation of a running job, unless it was requested before.
UPDATE headgate.job SET cancel_requested = true
WHERE id = :id::job_id AND finished_at IS NULL AND NOT waiting AND node IS NOT NULL AND NOT cancel_requested

-- name: delete_job
-- Delete a job that this transaction has stored.
DELETE FROM headgate.job WHERE id = :id::job_id

-- name: replace_job
-- Give a waiting job, which is locked, the arguments and limits of the job that replaces it, as if it had never been
-- tried. Its fence grows, so that a claim that has read it before does not start it as it was. Returns its rank.
UPDATE headgate.job
SET payload = :payload, queue = :queue, priority = :priority::smallint, delayed = :delayed::boolean,
    run_at = :run_at::bigint, aging = :aging::bigint,
    rank = :run_at::bigint - :priority::smallint * coalesce(:aging::bigint, @no_aging), expires_at = :expires_at::bigint,
    give_up_at = CASE WHEN state = 'waiting' THEN :give_up_at::bigint END, buckets = :buckets, costs = :costs,
    headers = :headers, options = :options, terms = :terms, limit_set = :limit_set, audit = :audit::smallint, lane = :lane,
    held = :held::bigint, passed = 0, attempt = 0, lost = 0, fence = fence + 1, error = NULL, progress = NULL,
    annotations = NULL
WHERE id = :id::job_id
RETURNING rank

-- name: forget_starts
-- Remove the charges of a job's attempts: they were made to limits that it no longer uses.
UPDATE headgate.attempt SET charged_at = NULL WHERE job = :id::job_id AND charged_at IS NOT NULL

-- name: keep_replacement_notes [postgres]
-- Note the permits, lanes and buckets that replaced jobs no longer need.
INSERT INTO headgate.replacement_note (permits, lane, buckets)
SELECT permits, lane, buckets FROM {rows:notes(permits json, lane text, buckets json)}

-- name: replacement_notes [postgres]
-- Return what replaced jobs no longer need and has not been given back yet.
SELECT id, permits, lane, buckets FROM headgate.replacement_note

-- name: take_replacement_notes [postgres]
-- Delete and return what replaced jobs no longer need; this transaction gives it back.
DELETE FROM headgate.replacement_note
WHERE id IN (SELECT id FROM headgate.replacement_note ORDER BY id LIMIT :count {for update skip locked})
RETURNING id, permits, lane, buckets
