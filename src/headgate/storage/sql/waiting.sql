-- Waiting jobs that leave their lanes without running, or move to another lane.

-- part: lane_member
job.id, job.queue, job.buckets, job.terms, job.held, job.passed, job.delayed, job.run_at, job.rank, job.is_followed, job.batch

-- part: locked_job
@lane_member, job.task, job.unique_key, CASE WHEN job.state = 'blocked' THEN 'waiting' ELSE job.state END AS state,
job.costs IS NOT NULL AS has_costs, job.state = 'blocked' AS is_blocked, job.follows, job.attempt,
{field:job.origin.on} AS outcome, job.options

-- name: find_job
SELECT @locked_job FROM headgate.job WHERE id = :id::job_id

-- name: lock_job
SELECT @locked_job FROM headgate.job WHERE id = :id::job_id {for update}

-- name: lock_job_if_free
SELECT @locked_job FROM headgate.job WHERE id = :id::job_id {for update skip locked}

-- name: idle_holders
-- Return jobs that hold permits of a bucket without running, locked; jobs that another transaction has locked are left
-- out.
SELECT @locked_job
FROM headgate.job
WHERE held <> 0 AND state <> 'running' AND {position}(buckets, :needle) > 0
ORDER BY id
{for update skip locked}

-- name: cancel_waiting
UPDATE headgate.job SET @ends_as('cancelled'), waiting = false WHERE id = :id::job_id AND state = 'waiting'

-- name: request_cancel
-- Request the cancellation of a running job from its node, unless it was requested before.
UPDATE headgate.job SET cancel_requested = true
WHERE id = :id::job_id AND finished_at IS NULL AND NOT waiting AND NOT cancel_requested

-- name: lock_lone_final
-- Lock those of these jobs that have failed or were cancelled and concern no other job, no batch and no unique key; jobs
-- that another transaction has locked are left out.
SELECT @locked_job
FROM headgate.job
WHERE id {any:ids job_id} AND state IN ('failed', 'cancelled')
    AND follows IS NULL AND NOT is_followed AND batch IS NULL AND unique_key IS NULL
ORDER BY id
{for update skip locked}

-- part: error_of_attempt
-- The error of a final job that waits again: that of its last attempt, but not why it has ended. In parts, because the
-- name before a dot would be replaced by the schema.
CASE
    WHEN {field:error.type} IN (
        'LeaderNotSucceeded', 'Superseded',
        'headgate' || '.Cancel', 'headgate' || '.errors.JobExpired', 'headgate' || '.errors.LimitRejected'
    ) THEN NULL
    ELSE error
END

-- name: retry_jobs
-- Let failed or cancelled jobs, which are locked, wait again with all their attempts; those with terms get them.
UPDATE headgate.job
SET state = 'waiting', waiting = true, lane = retried.lane, attempt = 0, lost = 0, run_at = :now,
    rank = rank + :now::bigint - run_at, delayed = false,
    finished_at = NULL, failed_as = NULL, failed_at = NULL, kept_until = NULL, expires_at = NULL,
    give_up_at = retried.give_up_at, passed = 0, charged_at = NULL, uncharged = 0, settled = NULL, result = NULL,
    progress = NULL, cancel_requested = false, terms = coalesce(retried.terms, job.terms),
    error = @error_of_attempt
FROM {rows:retried(id job_id, lane text, give_up_at bigint, terms text)}
WHERE @by_key(job.id, retried.id)

-- name: change_terms
UPDATE headgate.job SET terms = :terms WHERE id = :id::job_id

-- name: run_now
-- Make a job ready that waits for its time. Returns its rank.
UPDATE headgate.job
SET run_at = :now, rank = rank + :now::bigint - run_at, delayed = false, give_up_at = :give_up_at::bigint
WHERE id = :id::job_id AND state = 'waiting'
RETURNING rank

-- name: reschedule
-- Give a waiting job another time or another priority; :give_up_at is the end of its max_wait, counted from that time.
-- Its fence grows, so that a claim that has read it before does not start it as it was. Returns its rank; nothing if it
-- has that time and priority.
UPDATE headgate.job
SET run_at = :run_at::bigint, delayed = :delayed::boolean, priority = coalesce(:priority::smallint, priority),
    rank = CASE
        WHEN :priority::smallint IS NULL THEN rank + :run_at::bigint - run_at
        ELSE :run_at::bigint - :priority::smallint * @step
    END,
    give_up_at = CASE WHEN state = 'waiting' THEN coalesce(:give_up_at::bigint, give_up_at) END,
    fence = fence + (state = 'waiting')::integer
WHERE id = :id::job_id AND state IN ('waiting', 'blocked') AND (
    run_at <> :run_at::bigint OR delayed <> :delayed::boolean OR priority <> coalesce(:priority::smallint, priority)
)
RETURNING rank

-- part: first_late(which, time)
-- Late jobs of one kind, found by the index of that time.
SELECT id FROM (
    SELECT id FROM headgate.job
    WHERE $which AND $time <= :now AND NOT id {any:held job_id}
        AND (
            :lanes::text[] IS NULL
            OR (waiting AND lane {any:lanes text} AND task {any:tasks text} AND (NOT delayed OR run_at <= :now))
        )
    ORDER BY $time
    LIMIT :count
    {for update skip locked}
) AS first

-- part: late_job [postgres]
CROSS JOIN LATERAL (SELECT * FROM headgate.job WHERE job.id = late.id OFFSET 0) AS job
LEFT JOIN LATERAL (SELECT behind FROM headgate.lane WHERE lane.id = job.lane AND job.waiting OFFSET 0) AS lane ON true
LEFT JOIN LATERAL (SELECT limit_name, key FROM headgate.bucket WHERE bucket.id = lane.behind OFFSET 0) AS bucket ON true

-- part: late_job [sqlite]
JOIN job ON job.id = late.id
LEFT JOIN lane ON lane.id = job.lane AND job.waiting
LEFT JOIN bucket ON bucket.id = lane.behind

-- name: expired
-- Return waiting and blocked jobs whose time to start has passed, with the bucket that their lane waits behind; with
-- :lanes, only those that a claim would have started from these lanes. They are locked, except those that another
-- transaction has locked, or that are :held.
SELECT @locked_job, job.expires_at, job.give_up_at, job.lane AS lane_id, bucket.limit_name AS "limit", bucket.key
FROM (
    @first_late(waiting, expires_at)
    UNION
    @first_late(blocked, expires_at)
    UNION
    @first_late(waiting, give_up_at)
    LIMIT :count
) AS late
@late_job
ORDER BY job.id

-- name: lock_waiting
-- Lock those of these jobs that are still waiting or blocked, except those that another transaction has locked: they
-- are tried another time.
SELECT @locked_job
FROM headgate.job
WHERE id {any:ids job_id} AND finished_at IS NULL AND (waiting OR node IS NULL)
ORDER BY id
{for update skip locked}

-- name: drop_waiting [postgres]
-- End these waiting jobs without running them, except those that another transaction has locked, or has changed since they
-- were read.
WITH free AS (
    SELECT id FROM headgate.job WHERE id = ANY(:dropped.id::bigint[]) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE headgate.job
SET @ends_as(dropped.state), waiting = false, blocked = false, error = dropped.error, held = dropped.kept
FROM {rows:dropped(id job_id, lane text, state text, error json, kept bigint, fence integer)}
WHERE @by_key(job.id, dropped.id) AND job.lane = dropped.lane AND job.state IN ('waiting', 'blocked')
    AND job.fence = coalesce(dropped.fence, job.fence) AND @is_free
RETURNING job.id, job.state, job.is_followed, job.batch

-- name: drop_waiting [sqlite]
UPDATE job
SET @ends_as(dropped.state), waiting = false, blocked = false, error = dropped.error, held = dropped.kept
FROM {rows:dropped(id job_id, lane text, state text, error json, kept bigint)}
WHERE @by_key(job.id, dropped.id) AND job.lane = dropped.lane AND job.state IN ('waiting', 'blocked')
RETURNING id, state, is_followed, batch

-- name: forget_other_starts
-- Remove the charges of a job's attempts if it uses other limits now than those they were made to.
UPDATE headgate.attempt SET charged_at = NULL
WHERE job = :id::job_id AND charged_at IS NOT NULL AND EXISTS (
    SELECT 1 FROM headgate.job WHERE id = :id::job_id AND (buckets <> :buckets OR coalesce(costs, '') <> coalesce(:costs, ''))
)

-- part: gives_up(had, patience)
-- The end of another max_wait: it counts from when the one before did, and from now if there was none.
coalesce(give_up_at - $had, {greatest}(run_at, :now::bigint)) + $patience

-- name: change_limit_set
-- Give a waiting job, which is locked, other buckets and another lane; a blocked one will wait there.
UPDATE headgate.job
SET buckets = :buckets, costs = :costs, terms = :terms, held = :held, passed = :passed, lane = :lane,
    limit_set = coalesce(nullif(:limit_set, ''), limit_set),
    give_up_at = CASE WHEN waiting THEN @gives_up(:had::bigint, :patience::bigint) END
WHERE id = :id::job_id AND finished_at IS NULL

-- name: lock_plain
-- Lock those of these jobs that wait, hold no permit, cost no more than 1 and have never been tried, except those that
-- another transaction has locked.
SELECT @locked_job
FROM headgate.job
WHERE id {any:ids job_id} AND state = 'waiting' AND attempt = 0 AND held = 0 AND passed = 0 AND costs IS NULL
ORDER BY id
{for update skip locked}

-- name: change_plain_limit_sets
-- Give waiting jobs, which are locked, other buckets and other lanes.
UPDATE headgate.job
SET buckets = changed.buckets, costs = changed.costs, terms = changed.terms, lane = changed.lane,
    limit_set = coalesce(nullif(changed.limit_set, ''), job.limit_set),
    give_up_at = @gives_up(changed.had, changed.patience)
FROM {rows:changed(
    id job_id, buckets json, costs json, terms json, lane text, limit_set text, had bigint, patience bigint
)}
WHERE @by_key(job.id, changed.id)

-- name: change_limit_set_names
-- Give waiting jobs another limit set; their buckets stay.
UPDATE headgate.job SET limit_set = stays.limit_set
FROM {rows:stays(id job_id, before json, limit_set text)}
WHERE @by_key(job.id, stays.id) AND finished_at IS NULL AND (waiting OR node IS NULL) AND job.buckets = stays.before

-- name: set_held
-- Store which permits a job keeps, which buckets it passes at its next start, and its lane.
UPDATE headgate.job SET held = :held, passed = :passed, lane = :lane WHERE id = :id::job_id
