-- Followers of jobs and batches.

-- name: states_of_leaders
-- Return the states of these jobs, locked so that they stay so.
SELECT id, state FROM headgate.job WHERE id {any:ids job_id} ORDER BY id {for update}

-- name: counts_of_leaders
-- Return the counts of these batches, locked so that they stay so.
SELECT id, pending, succeeded, failed, cancelled, skipped, batch, is_join
FROM headgate.batch
WHERE id {any:ids job_id}
ORDER BY id
{for update}

-- name: causes
-- Return the errors of these leaders that failed or were cancelled. The error of a batch is that of one of its jobs; of a job
-- that was cancelled for its own leader only if all were.
SELECT id AS leader, error, false AS is_batch, false AS is_join FROM headgate.job WHERE id {any:leaders job_id}
UNION ALL
SELECT
    batch.id,
    (
        SELECT error FROM headgate.job
        WHERE job.batch IS NOT NULL AND job.batch = batch.id AND job.state IN ('failed', 'cancelled')
        ORDER BY coalesce({field:error.type}, '') = 'LeaderNotSucceeded', job.id
        LIMIT 1
    ),
    true,
    is_join
FROM headgate.batch
WHERE batch.id {any:leaders job_id}

-- name: ended_members
-- Return batches in these batches, and leaders that these joins have counted, that failed or were cancelled: the first of
-- each.
SELECT member.batch, member.id AS member, member.state, member.is_join
FROM (
    SELECT
        batch, id, CASE WHEN failed > 0 THEN 'failed' ELSE 'cancelled' END AS state, false AS is_join,
        row_number() OVER (PARTITION BY batch ORDER BY id) AS place
    FROM headgate.batch
    WHERE batch {any:batches job_id} AND pending = 0 AND failed + cancelled > 0
    UNION ALL
    SELECT batch, leader, ended_as, true, row_number() OVER (PARTITION BY batch ORDER BY leader)
    FROM headgate.awaited_leader
    WHERE batch {any:batches job_id} AND ended_as IN ('failed', 'cancelled')
) AS member
WHERE place = 1

-- name: mark_followed
-- Mark these jobs as followed, so that their end releases followers. They are locked already, or new.
UPDATE headgate.job SET is_followed = true WHERE id {any:ids job_id} AND NOT is_followed

-- name: add_batches
-- Store new batches with the counts of their members that are final from the start; stored batches stay as they are.
INSERT INTO headgate.batch (
    id, total, pending, succeeded, failed, cancelled, skipped, enqueued_at, finished_at, batch, is_join, schedule,
    name, enqueued_by
)
SELECT
    id, total, total - succeeded - failed - cancelled - skipped, succeeded, failed, cancelled, skipped, enqueued_at,
    CASE WHEN total = succeeded + failed + cancelled + skipped THEN :now::bigint END, batch, is_join, schedule,
    name, :enqueued_by::text
FROM {rows:new(
    id job_id, total integer, enqueued_at bigint, batch job_id, is_join boolean, schedule text, name text,
    succeeded integer, failed integer, cancelled integer, skipped integer
)}
WHERE true
ORDER BY id
ON CONFLICT (id) DO NOTHING

-- name: stored_batches
-- Return which enqueues have stored these batches.
SELECT id, NULL AS own_id, '' AS task, enqueued_at, enqueued_by FROM headgate.batch WHERE id {any:ids job_id}

-- name: grow_batch
-- Count new jobs of a batch, which is locked and not final; of some the end is known from the start.
UPDATE headgate.batch
SET total = total + :count::integer,
    pending = pending + :count::integer
        - :succeeded::integer - :failed::integer - :cancelled::integer - :skipped::integer,
    succeeded = succeeded + :succeeded::integer,
    failed = failed + :failed::integer,
    cancelled = cancelled + :cancelled::integer,
    skipped = skipped + :skipped::integer
WHERE id = :id::job_id AND pending > 0

-- name: add_awaited_leaders
-- Store which leaders new joins count, and how those ended that are final.
INSERT INTO headgate.awaited_leader (batch, leader, ended_as)
SELECT batch, leader, ended_as FROM {rows:new(batch job_id, leader job_id, ended_as text)}
WHERE true
ON CONFLICT (batch, leader) DO NOTHING

-- name: add_awaited_results
-- Store which results new jobs get as arguments.
INSERT INTO headgate.awaited_result (reader, leader)
SELECT reader, leader FROM {rows:new(reader job_id, leader job_id)}
WHERE true
ON CONFLICT (reader, leader) DO NOTHING

-- name: count_awaited_leaders
-- Note that joins count leaders that are final.
UPDATE headgate.awaited_leader SET ended_as = ended.state
FROM {rows:ended(batch job_id, leader job_id, state text)}
WHERE @by_key(awaited_leader.batch, ended.batch) AND @by_key(awaited_leader.leader, ended.leader)

-- name: uncount_awaited_leaders
-- Note that joins do not count these leaders any more. Returns those that they had counted.
UPDATE headgate.awaited_leader SET ended_as = NULL
WHERE leader {any:leaders job_id} AND ended_as IS NOT NULL
RETURNING leader, batch

-- name: count_batches
-- Count members of batches that have become final; below 0, members that are no longer final.
UPDATE headgate.batch
SET pending = batch.pending - counts.succeeded - counts.failed - counts.cancelled - counts.skipped,
    succeeded = batch.succeeded + counts.succeeded,
    failed = batch.failed + counts.failed,
    cancelled = batch.cancelled + counts.cancelled,
    skipped = batch.skipped + counts.skipped,
    finished_at = CASE
        WHEN batch.pending = counts.succeeded + counts.failed + counts.cancelled + counts.skipped THEN :now::bigint
    END
FROM {rows:counts(id job_id, succeeded integer, failed integer, cancelled integer, skipped integer)}
WHERE @by_key(batch.id, counts.id)
RETURNING
    batch.id, batch.pending, batch.succeeded, batch.failed, batch.cancelled, batch.skipped, batch.batch, batch.is_join

-- name: member_of_batch
-- Return the buckets and terms of one of the jobs of a batch.
SELECT id, buckets, terms, held FROM headgate.job WHERE batch IS NOT NULL AND batch = :batch::job_id LIMIT 1

-- name: followers [postgres]
-- Return up to :count blocked followers of these leaders, and joins that count them, those of each leader after an id,
-- in the order of the given leaders, as each is looked up after the one before it, and of the ids. Followers are locked.
-- Followers that another transaction has locked, or that are released or final meanwhile, come with NULL in their
-- other columns.
WITH named AS MATERIALIZED (
    SELECT job.id, job.follows, leaders.place
    FROM {rows:leaders(id job_id, after job_id, place)}
    CROSS JOIN LATERAL (
        SELECT id, follows FROM headgate.job
        -- As one comparison, it is read by the index of followers, and never by the primary key.
        WHERE (follows, id) > (leaders.id, leaders.after) AND follows <= leaders.id
            AND finished_at IS NULL AND NOT waiting AND node IS NULL
        ORDER BY follows, id
        LIMIT :count::integer
    ) AS job
    LIMIT :count::integer
), joins AS MATERIALIZED (
    SELECT batch AS id, leaders.id AS leader, leaders.place
    FROM {rows:leaders(id job_id, after job_id, place)}
    CROSS JOIN LATERAL (
        SELECT batch FROM headgate.awaited_leader
        WHERE leader = leaders.id AND batch > leaders.after AND ended_as IS NULL
        ORDER BY batch
        LIMIT :count::integer
    ) AS awaited
    LIMIT :count::integer
), free AS MATERIALIZED (
    SELECT id, {field:origin.on} AS outcome, queue, buckets, terms, held, passed, delayed, run_at, rank, is_followed, batch
    FROM headgate.job
    WHERE id = ANY(ARRAY(SELECT id FROM named)) AND finished_at IS NULL AND NOT waiting AND node IS NULL
    ORDER BY id
    FOR UPDATE SKIP LOCKED
)
SELECT
    id, coalesce(queue, '') AS queue, coalesce(buckets, '[]') AS buckets, terms, coalesce(held, 0) AS held,
    coalesce(passed, 0) AS passed, coalesce(delayed, false) AS delayed, coalesce(run_at, 0) AS run_at,
    coalesce(rank, 0) AS rank, coalesce(is_followed, false) AS is_followed, batch, named.follows AS leader, outcome,
    queue IS NULL AS is_locked, false AS is_join, place
FROM named LEFT JOIN free USING (id)
UNION ALL
SELECT id, '', '[]', NULL, 0, 0, false, 0, 0, true, NULL, leader, NULL, false, true, place FROM joins
ORDER BY place, id
LIMIT :count::integer

-- name: followers [sqlite]
SELECT
    @lane_member, follows AS leader, {field:origin.on} AS outcome, false AS is_locked, false AS is_join, leaders.place
FROM {rows:leaders(id job_id, after job_id, place)}
CROSS JOIN job ON job.rowid IN (
    SELECT follower.rowid FROM job AS follower
    WHERE follower.follows = leaders.id AND follower.id > leaders.after AND follower.state = 'blocked'
    ORDER BY follower.id
    LIMIT :count
)
UNION ALL
SELECT awaited.batch, '', '[]', NULL, 0, 0, false, 0, 0, true, NULL, leaders.id, NULL, false, true, leaders.place
FROM {rows:leaders(id job_id, after job_id, place)}
CROSS JOIN awaited_leader AS awaited
    ON awaited.leader = leaders.id AND awaited.batch > leaders.after AND awaited.ended_as IS NULL
ORDER BY place, 1 -- its first column: SQLite takes `id` for that of the leader
LIMIT :count

-- name: release
-- Let blocked jobs, which are locked, wait in their lanes, ready now or at the time that was requested for them.
UPDATE headgate.job
SET state = 'waiting', waiting = true, blocked = false, lane = released.lane,
    delayed = delayed AND run_at > :now::bigint,
    run_at = {greatest}(run_at, :now::bigint),
    rank = rank + {greatest}(run_at, :now::bigint) - run_at,
    give_up_at = released.give_up_at
FROM {rows:released(id job_id, lane text, give_up_at bigint)}
WHERE @by_key(job.id, released.id) AND job.finished_at IS NULL AND NOT job.waiting

-- name: end_blocked
-- Cancel or skip blocked jobs, which will never run. A cancelled one without a new error keeps the one that it has; a
-- skipped one has none.
UPDATE headgate.job
SET @ends_as(ended.state), blocked = false,
    error = CASE WHEN ended.state = 'cancelled' THEN coalesce(ended.error, job.error) END
FROM {rows:ended(id job_id, state text, error json)}
WHERE @by_key(job.id, ended.id) AND job.finished_at IS NULL AND NOT job.waiting

-- part: is_unrun
-- Whether a job was cancelled because of its leader's end and has not been retried since.
finished_at IS NOT NULL AND CASE WHEN state = 'cancelled' THEN {field:error.type} = 'LeaderNotSucceeded' END

-- name: cancelled_followers
-- Return the followers of these leaders that were, and the followers of those that were, and so on; locked. None of them
-- has a unique key: a job with one follows only the running job under it, and is never cancelled because of its end. What
-- they follow is locked, or cancelled, so nobody retries them meanwhile.
WITH RECURSIVE found (id) AS (
    SELECT id FROM headgate.job WHERE follows {any:leaders job_id} AND @is_unrun
    UNION
    SELECT job.id @followers_of_found(@is_unrun)
)
SELECT job.id, job.state, job.is_followed, job.batch
FROM found @looked_up(job, job.id = found.id)
ORDER BY job.id
{for update}

-- name: block
-- Block final jobs again behind leaders that are not final.
UPDATE headgate.job
SET state = 'blocked', blocked = true, attempt = 0, lost = 0,
    finished_at = NULL, failed_as = NULL, failed_at = NULL, kept_until = NULL, expires_at = NULL,
    run_at = CASE WHEN :is_retry::boolean THEN :now::bigint ELSE run_at END,
    rank = CASE WHEN :is_retry::boolean THEN rank + :now::bigint - run_at ELSE rank END,
    delayed = delayed AND NOT :is_retry::boolean,
    give_up_at = NULL, held = 0, passed = 0, charged_at = NULL, uncharged = 0, settled = NULL, result = NULL,
    error = @error_of_attempt, progress = NULL, cancel_requested = false, node = NULL
WHERE id {any:ids job_id} AND finished_at IS NOT NULL

-- name: keep_ended_leaders
-- Note final leaders of which not all followers have been released or are final.
INSERT INTO headgate.ended_leader (id, ended_as, after)
SELECT id, state, after FROM {rows:ended(id job_id, state text, after job_id)}
WHERE true
ORDER BY id
ON CONFLICT (id) DO UPDATE SET ended_as = excluded.ended_as, after = excluded.after

-- name: lock_ended_leaders
-- Lock and return some noted leaders on which no other transaction works.
SELECT id, ended_as AS state, after FROM headgate.ended_leader ORDER BY id LIMIT :count {for update skip locked}

-- name: forget_ended_leaders
-- Delete the notes of leaders that are no longer final, or that have no followers left.
DELETE FROM headgate.ended_leader WHERE id {any:ids job_id}

-- part: followers_of_found(condition) [postgres]
-- Looked up one by one: a join may read the whole index at each step of a chain, if the table was never analyzed.
FROM found
CROSS JOIN LATERAL (SELECT id FROM headgate.job WHERE follows IS NOT NULL AND follows = found.id AND $condition OFFSET 0) AS job

-- part: followers_of_found(condition) [sqlite]
-- Looked up by IN: before a join on `follows`, SQLite would read all jobs after ANALYZE.
FROM found
CROSS JOIN job ON job.rowid IN (
    SELECT rowid FROM job WHERE follows IS NOT NULL AND follows = found.id AND $condition
)

-- name: downstream_jobs
-- Return the jobs of these batches, and those that follow these leaders or such a job, as far as they are not final.
WITH RECURSIVE found (id) AS (
    SELECT job.id
    FROM headgate.job
    WHERE job.batch IS NOT NULL AND job.batch {any:batches job_id} AND job.finished_at IS NULL
    UNION
    SELECT job.id
    FROM headgate.job
    WHERE job.follows IS NOT NULL AND job.follows {any:leaders job_id} AND job.finished_at IS NULL
    UNION
    SELECT job.id @followers_of_found(finished_at IS NULL)
)
SELECT
    job.id, CASE WHEN state = 'blocked' THEN 'waiting' ELSE state END AS state, cancel_requested,
    state = 'blocked' AS is_blocked, {field:origin.on} AS needs, job.follows
FROM found
CROSS JOIN headgate.job
WHERE job.id = found.id
ORDER BY job.id

-- name: pending_batches_in
SELECT id FROM headgate.batch WHERE batch IS NOT NULL AND batch {any:batches job_id} AND pending > 0 ORDER BY id

-- name: counting_batches
-- Return the batches and joins that still count these jobs and batches as pending.
SELECT id, batch AS counted_by FROM headgate.job WHERE id {any:members job_id} AND batch IS NOT NULL
UNION ALL
SELECT id, batch FROM headgate.batch WHERE id {any:members job_id} AND batch IS NOT NULL AND pending > 0
UNION ALL
SELECT leader, batch FROM headgate.awaited_leader WHERE leader {any:members job_id} AND ended_as IS NULL

-- name: lock_blocked
-- Lock those of these jobs that are still blocked, except those that another transaction has locked: they end as cancelled.
SELECT id, 'cancelled' AS state, is_followed, batch
FROM headgate.job
WHERE id {any:ids job_id} AND finished_at IS NULL AND NOT waiting AND node IS NULL
ORDER BY id
{for update skip locked}
