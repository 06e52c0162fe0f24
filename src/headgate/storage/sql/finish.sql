-- Attempts that end.

-- part: ends_as(state)
-- What follows from the state in which a job ends now.
state = $state, finished_at = :now, holds_key = false,
failed_as = CASE WHEN $state <> 'succeeded' THEN $state END,
failed_at = CASE WHEN $state <> 'succeeded' THEN :now::bigint END,
kept_until = @kept_until(:now::bigint, $state)

-- part: kept_until(finished_at, state) [postgres]
-- The end of a job's own retention; NULL for forever, and if it has none.
-- A pattern: a damaged option must not keep its job from ending. No other option has these names.
CASE
    WHEN @has_own_retention
    THEN $finished_at + 1000000 * substring(options COLLATE "C" FROM '"' || $state || '":([0-9]+)')::bigint
END

-- part: kept_until(finished_at, state) [sqlite]
CASE
    WHEN @has_own_retention AND json_type(options, '$.retention.' || $state) = 'integer'
    THEN $finished_at + 1000000 * json_extract(options, '$.retention.' || $state)
END

-- part: plain_ending
-- As `ends_as`: a running job has no values in the other columns.
SET state = 'succeeded', result = ended.result, error = NULL, finished_at = :now, holds_key = false,
    kept_until = @kept_until(:now::bigint, 'succeeded'), charged_at = coalesce(ended.charged_at, job.charged_at)
FROM {rows:ended(id job_id, fence integer, result text, charged_at bigint)}

-- part: by_key(key, value) [postgres]
-- Rows that are looked up one by one. An equation lets the planner read a whole index and compare each row with each other
-- one, if the table was empty when the statement was planned.
$key = ANY(ARRAY[$value])

-- part: by_key(key, value) [sqlite]
$key = $value

-- part: is_plain
@by_key(job.id, ended.id) AND job.fence = ended.fence AND job.finished_at IS NULL AND NOT job.waiting AND job.node = :node
    AND job.held = 0 AND NOT job.is_followed AND job.batch IS NULL

-- part: finish_unless_locked(which) [postgres]
-- Of the jobs for which $which is true, it leaves out those that another transaction has locked.
WITH free AS (
    SELECT id FROM headgate.job
    WHERE id = ANY(:ended.id::bigint[]) AND node = :node AND $which
    ORDER BY id
    FOR NO KEY UPDATE SKIP LOCKED
),
written AS (
    UPDATE headgate.job @plain_ending
    WHERE @is_plain AND (NOT ($which) OR @is_free)
    RETURNING job.id
)
-- In one row: a row for each costs more.
SELECT array_agg(id) FROM written

-- name: finish_plain [postgres]
-- Let running jobs succeed that hold no permits, have no followers and are in no batch, if they are still the node's
-- under that fence. The charge of their start is settled, if one is given. A user's transaction may lock a job with a
-- unique key to let another job follow it: a job with a unique key that is locked is left out.
@finish_unless_locked(job.unique_key IS NOT NULL)

-- name: finish_plain [sqlite]
-- One JSON text: bound values would save 0.3 of 3.3 µs a job, and need another statement for each number of jobs.
UPDATE job @plain_ending WHERE @is_plain

-- name: finish_free [postgres]
-- As finish_plain, but without any job that another transaction has locked, so that it never waits for a user's one.
@finish_unless_locked(true)

-- part: running_job
-- The columns of a running job that the end of an attempt reads.
@lane_member, fence, cancel_requested, lost, uncharged, unique_key IS NOT NULL AS is_unique,
coalesce(completed_fence, -1) = fence AS is_complete, charged_at

-- part: running_under
FROM headgate.job WHERE id {any:ids job_id} AND finished_at IS NULL AND NOT waiting AND node = :node

-- name: running_of
-- Return those of these jobs that run on a node.
SELECT @running_job @running_under

-- name: lock_running
-- Return the same, locked, except those that another transaction has locked.
SELECT @running_job @running_under ORDER BY id {for update skip locked}

-- name: running_on
-- Return the jobs that run on a node and started at :since or later.
SELECT @running_job FROM headgate.job WHERE @runs_on(:node, :since) AND started_at >= :since ORDER BY id

-- name: complete
-- Note, in a user's transaction, that the running attempt of a job has completed it.
UPDATE headgate.job SET completed_fence = fence
WHERE id = :id::job_id AND fence = :fence::integer AND finished_at IS NULL AND NOT waiting AND node IS NOT NULL

-- name: is_complete
-- Return a row if that transaction has committed.
SELECT 1 FROM headgate.job WHERE id = :id::job_id AND completed_fence = :fence::integer

-- name: settle_charges
-- Correct the charges of the last starts of running jobs.
UPDATE headgate.job
SET charged_at = settled.charged_at, settled = settled.costs
FROM {rows:settled(id job_id, charged_at bigint, costs json)}
WHERE @by_key(job.id, settled.id)

-- name: keep_attempts
-- Store attempts that did not succeed, as the audit level of their jobs requires.
INSERT INTO headgate.attempt (job, number, node, started_at, ended_at, outcome, error, charged_at, uncharged, settled)
SELECT
    job.id, job.attempt, job.node, job.started_at, :now::bigint, ended.outcome, ended.error, job.charged_at, job.uncharged,
    job.settled
FROM {rows:ended(id job_id, outcome text, error json)}
JOIN headgate.job ON @by_key(job.id, ended.id)
WHERE job.audit >= CASE WHEN ended.error IS NOT NULL OR ended.outcome = 'lost' THEN 1 ELSE 2 END

-- name: finish
-- Make running jobs final; with :lost, because too many of their attempts were lost with nodes.
UPDATE headgate.job
SET @ends_as(ended.state), result = ended.result, error = ended.error, held = ended.held, lost = job.lost + :lost::integer
FROM {rows:ended(id job_id, state text, result text, error json, held bigint)}
WHERE @by_key(job.id, ended.id) AND job.finished_at IS NULL AND NOT job.waiting

-- name: give_back
-- Let running jobs wait again, in the lanes of their next buckets, or cancel them if that was requested.
UPDATE headgate.job
SET state = CASE WHEN cancel_requested THEN 'cancelled' ELSE 'waiting' END,
    waiting = NOT cancel_requested,
    finished_at = CASE WHEN cancel_requested THEN :now::bigint END,
    holds_key = false,
    failed_as = CASE WHEN cancel_requested THEN 'cancelled' END,
    failed_at = CASE WHEN cancel_requested THEN :now::bigint END,
    kept_until = CASE WHEN cancel_requested THEN @kept_until(:now::bigint, 'cancelled') END,
    attempt = job.attempt - back.unspent,
    lost = job.lost + back.lost,
    delayed = back.delayed,
    run_at = back.run_at,
    rank = job.rank + back.run_at - job.run_at,
    error = coalesce(back.error, job.error),
    give_up_at = back.give_up_at,
    held = back.held,
    passed = back.passed,
    lane = back.lane,
    charged_at = NULL,
    uncharged = 0,
    settled = NULL
FROM {rows:back(
    id job_id, unspent integer, lost integer, delayed boolean, run_at bigint, error json, give_up_at bigint, held bigint,
    passed bigint, lane text
)}
WHERE @by_key(job.id, back.id) AND job.finished_at IS NULL AND NOT job.waiting

-- name: ended_on
-- Return the state of those of these jobs that the node ran last.
SELECT id, fence, state, error, cancel_requested, coalesce(completed_fence, -1) = fence AS is_complete
FROM headgate.job
WHERE id {any:ids job_id} AND node = :node
