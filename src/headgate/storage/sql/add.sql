-- New jobs.

-- part: new_job_rows
-- The columns of a new job that are passed: the fields of `NewJob` and those that procedures/add.py adds; `rank` follows
-- from its time and priority, `waiting` and `finished_at` from its state.
{values:new(
    id text, payload text, run_at bigint, enqueued_at bigint;
    lane text, draws json;
    task text, queue text, gate text, priority smallint, aging bigint, delayed boolean;
    expires_at bigint, give_up_at bigint, costs json, headers json, options json, terms json, state text, error json,
    enqueued_by text, unique_key text, origin json, follows text, batch text, schedule text, audit smallint
)}

-- name: add_jobs [postgres]
-- Store new jobs, and note their arrival in their lanes. Jobs whose ids are stored already stay as they are; jobs whose
-- unique key another waiting job has are not stored.
WITH new AS (
    INSERT INTO headgate.job ({columns:new}, rank, waiting, finished_at)
    SELECT
        {columns:new}, run_at - priority * @step, state = 'waiting',
        CASE WHEN state NOT IN ('waiting', 'blocked') THEN enqueued_at END
    FROM @new_job_rows
    ON CONFLICT DO NOTHING
    RETURNING lane, delayed, run_at, rank, waiting
)
INSERT INTO headgate.arrival (lane, queue, draws, variant, jobs, is_ready, since, wakes_at, rank)
SELECT
    lanes.id, lanes.queue, lanes.draws, lanes.variant, count(*), bool_or(NOT new.delayed), :since::bigint,
    min(new.run_at) FILTER (WHERE new.delayed), min(new.rank) FILTER (WHERE NOT new.delayed)
FROM new
JOIN {values:lanes(id text, queue text, draws json, variant text, place integer)} ON lanes.id = new.lane
WHERE new.waiting
GROUP BY lanes.id, lanes.queue, lanes.draws, lanes.variant, lanes.place
ORDER BY lanes.place

-- name: add_jobs [sqlite]
INSERT INTO job ({columns:new}, rank, waiting, finished_at)
SELECT
    {columns:new}, run_at - priority * @step, state = 'waiting',
    CASE WHEN state NOT IN ('waiting', 'blocked') THEN enqueued_at END
FROM @new_job_rows
WHERE true
ON CONFLICT (id) DO NOTHING

-- name: just_added [sqlite]
-- Return the ids of the last :count jobs that this connection has stored, in this transaction and by consecutive
-- statements.
SELECT id FROM job WHERE rowid > last_insert_rowid() - :count
