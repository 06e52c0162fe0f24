-- New jobs.

-- part: new_job_rows
-- The columns of a new job that are passed: the fields of `NewJob` and those that procedures/add.py adds; `rank` follows
-- from its time and priority, what comes after it from its state.
{values:new(
    id bigint, payload text, run_at bigint, enqueued_at bigint;
    lane text, buckets json;
    task text, queue text, limit_set text, priority smallint, aging bigint, delayed boolean;
    expires_at bigint, give_up_at bigint, costs json, headers json, options json, terms json, state text, error json,
    enqueued_by text, unique_key text, origin json, follows job_id, batch job_id, schedule text, audit smallint, own_id text
)}

-- part: is_new_final
-- A new job that cannot run is final at once; it has not succeeded.
state NOT IN ('waiting', 'blocked')

-- part: insert_jobs
INSERT INTO headgate.job ({columns:new}, rank, waiting, blocked, finished_at, failed_as, failed_at, kept_until)
SELECT
    {columns:new}, run_at - priority * @step, state = 'waiting', state = 'blocked',
    CASE WHEN @is_new_final THEN enqueued_at END, CASE WHEN @is_new_final THEN state END,
    CASE WHEN @is_new_final THEN enqueued_at END, CASE WHEN @is_new_final THEN @kept_until(enqueued_at, state) END
FROM @new_job_rows
WHERE true

-- part: note_arrivals [postgres]
INSERT INTO headgate.arrival (lane, queue, buckets, wait_mode, jobs, is_ready, since, wakes_at, rank)
SELECT
    lanes.id, lanes.queue, lanes.buckets, lanes.wait_mode, count(*), bool_or(NOT new.delayed), :since::bigint,
    min(new.run_at) FILTER (WHERE new.delayed), min(new.rank) FILTER (WHERE NOT new.delayed)
FROM new
JOIN {values:lanes(id text, queue text, buckets json, wait_mode text, place integer)} ON lanes.id = new.lane
WHERE new.waiting
GROUP BY lanes.id, lanes.queue, lanes.buckets, lanes.wait_mode, lanes.place
ORDER BY lanes.place

-- name: add_jobs [postgres]
-- Store new jobs, and note their arrival in their lanes. Jobs whose ids are stored already stay as they are; jobs whose
-- unique key another waiting job has are not stored. Returns how many are stored.
WITH new AS (
    @insert_jobs
    ON CONFLICT DO NOTHING
    RETURNING lane, delayed, run_at, rank, waiting
),
arrived AS (
    @note_arrivals
)
SELECT count(*) FROM new

-- name: add_new_jobs [postgres]
-- As add_jobs, but nothing is stored and the statement fails if one of the ids is stored already.
WITH new AS (
    @insert_jobs
    RETURNING lane, delayed, run_at, rank, waiting
)
@note_arrivals

-- name: add_jobs [sqlite]
@insert_jobs
ON CONFLICT (id) DO NOTHING

-- name: begin_to_write [sqlite]
-- Wait for other writers, and change nothing. SQLite lets no transaction wait that has read: its first write fails.
UPDATE limit_time SET last_used = last_used WHERE id = 0

-- name: highest_id [sqlite]
-- The highest id of a job.
SELECT max(id) FROM job

-- name: next_producer [postgres]
-- Return the next number of a producer; it waits for nobody.
SELECT headgate.next_producer()
