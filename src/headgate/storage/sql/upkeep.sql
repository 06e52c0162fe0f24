-- What nodes do once a minute or so, what operators do to queues, and whether rows agree.

-- part: prunable_job
job.id, job.held, job.draws, job.terms, (SELECT count(*) FROM headgate.log_line WHERE log_line.job = job.id) AS lines, job.batch

-- name: prunable [postgres]
-- Jobs that finished in these states before then, how many lines each has logged, and its batch.
SELECT @prunable_job
FROM (
    SELECT id, held, draws, terms, batch FROM headgate.job
    WHERE state {any:states text} AND finished_at < :before
    LIMIT :count
) AS job

-- name: prunable [sqlite]
-- The same for one queue after the other, as they stand in the index of final jobs.
WITH RECURSIVE ended (state, queue) AS (
    SELECT value, (SELECT min(queue) FROM job WHERE finished_at IS NOT NULL AND state = value) FROM json_each(:states)
    UNION ALL
    SELECT
        state,
        (SELECT min(queue) FROM job WHERE finished_at IS NOT NULL AND job.state = ended.state AND job.queue > ended.queue)
    FROM ended
    WHERE queue IS NOT NULL
)
SELECT @prunable_job
FROM ended
CROSS JOIN job ON job.state = ended.state AND job.queue = ended.queue AND job.finished_at < :before
LIMIT :count

-- name: prunable_by_id
-- Those of these jobs that finished in these states before then.
SELECT @prunable_job
FROM (
    SELECT id, held, draws, terms, batch FROM headgate.job
    WHERE id {any:ids text} AND {no index}state {any:states text} AND {no index}finished_at < :before
    LIMIT :count
) AS job

-- name: lock_prunable
-- Those of these jobs that are as they were, and that nobody else prunes, locked.
SELECT id, held FROM headgate.job WHERE id {any:ids text} AND {no index}finished_at < :before {for update skip locked}

-- name: prune_jobs
-- Forget final jobs.
DELETE FROM headgate.job WHERE id {any:ids text} AND {no index}finished_at IS NOT NULL

-- name: prune_attempts
DELETE FROM headgate.attempt WHERE job {any:ids text}

-- name: prune_lines
DELETE FROM headgate.log_line WHERE job {any:ids text}

-- name: prune_deeds
-- Forget what was done to pruned jobs.
DELETE FROM headgate.audit_entry WHERE subject {any:ids text} AND kind = 'job'

-- name: prune_batches_of
-- Forget these batches, where they were final before then and no job of them is stored any more.
DELETE FROM headgate.batch
WHERE id IN (
    SELECT id FROM headgate.batch
    WHERE id {any:ids text} AND {no index}finished_at < :before
        AND NOT EXISTS (SELECT 1 FROM headgate.job WHERE job.batch IS NOT NULL AND job.batch = batch.id)
    {for update skip locked}
)

-- name: prune_batches
-- Forget batches that were final before then, of which no job is stored any more: it reads all that are so old.
DELETE FROM headgate.batch
WHERE id IN (
    SELECT id FROM headgate.batch
    WHERE finished_at < :before AND NOT EXISTS (SELECT 1 FROM headgate.job WHERE job.batch IS NOT NULL AND job.batch = batch.id)
    LIMIT :count
    {for update skip locked}
)

-- name: evict_buckets
-- Forget buckets that are as good as new and have no lane behind them.
DELETE FROM headgate.bucket
WHERE id IN (
    SELECT id FROM headgate.bucket
    WHERE opens_at IS NULL AND idle_at <= :limit_now AND closed_until <= :limit_now
    LIMIT :count
    {for update skip locked}
)

-- name: evict_notes
-- Forget what plain code was answered, where it counts no more.
DELETE FROM headgate.bucket_note
WHERE (bucket, id) IN (SELECT bucket, id FROM headgate.bucket_note WHERE until <= :limit_now LIMIT :count)

-- name: evict_lanes [postgres]
-- Forget empty lanes. Whoever comes to one again brings all that it takes to make it anew.
DELETE FROM headgate.lane
WHERE id IN (
    SELECT id FROM headgate.lane
    WHERE gated AND since IS NULL AND wakes_at IS NULL AND waiting = 0
    LIMIT :count
    FOR UPDATE SKIP LOCKED
)

-- name: evict_lanes [sqlite]
-- Forget empty lanes that no running job can come back to.
DELETE FROM lane
WHERE id IN (
    SELECT id FROM lane
    WHERE gated AND waiting = 0 AND id NOT IN (SELECT lane FROM job WHERE state = 'running')
    LIMIT :count
)

-- name: pause_queue
-- Let no claim take a job of a queue; nothing is inserted if it is paused already.
INSERT INTO headgate.paused_queue (queue, paused_at) VALUES (:queue, :now)
ON CONFLICT (queue) DO NOTHING

-- name: resume_queue
DELETE FROM headgate.paused_queue WHERE queue = :queue

-- part: lines [postgres]
-- Lanes as they are when what has arrived is merged. Where somebody's transaction held all jobs of a lane, that may sleep
-- for a second; lanes without draws never sleep, and jobs that run need none.
SELECT
    coalesce(lane.id, arrived.lane) AS id,
    coalesce(lane.waiting, 0) + coalesce(arrived.jobs, 0) AS waiting,
    lane.behind,
    least(lane.wakes_at, arrived.wakes_at) AS wakes_at,
    coalesce(lane.gated, arrived.gated) AND lane.since IS NULL AND NOT coalesce(arrived.is_ready, false) AS is_asleep,
    least(lane.wakes_at, arrived.wakes_at) <= :now::bigint + 1000000 AS wakes_soon
FROM headgate.lane
FULL JOIN (
    SELECT lane, sum(jobs) AS jobs, bool_or(is_ready) AS is_ready, min(wakes_at) AS wakes_at, bool_or(draws <> '[]') AS gated
    FROM headgate.arrival GROUP BY lane
) AS arrived ON arrived.lane = lane.id

-- part: lines [sqlite]
SELECT id, waiting, behind, wakes_at, since IS NULL AS is_asleep, false AS wakes_soon FROM lane

-- part: needs_lane [postgres]
waiting

-- part: needs_lane [sqlite]
state IN ('waiting', 'running')

-- part: may_oversleep [postgres]
is_asleep

-- part: may_oversleep [sqlite]
true

-- part: noted_of_schedule [postgres]
+ coalesce((SELECT sum(note.open) FROM headgate.schedule_note AS note WHERE note.schedule = name), 0)

-- part: noted_of_schedule [sqlite]

-- name: check
-- Contradictions between jobs, lanes and buckets, one sentence each.
WITH line AS MATERIALIZED (@lines)
SELECT 'lane ' || id || ' counts ' || waiting || ' waiting jobs and has ' || found
FROM (
    SELECT id, waiting, (SELECT count(*) FROM headgate.job WHERE job.lane = line.id AND job.waiting) AS found FROM line
) AS counted
WHERE waiting <> found
UNION ALL
SELECT 'lane ' || id || ' waits behind bucket ' || behind || ', which has no timer'
FROM line
WHERE behind IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM headgate.bucket WHERE bucket.id = line.behind AND opens_at IS NOT NULL)
UNION ALL
SELECT 'lane ' || id || ' sleeps although job ' || job || ' is ready'
FROM (
    SELECT
        id,
        (SELECT min(job.id) FROM headgate.job WHERE job.lane = line.id AND job.waiting AND job.delayed = false) AS job
    FROM line
    WHERE is_asleep AND wakes_soon IS NOT TRUE
) AS asleep
WHERE job IS NOT NULL
UNION ALL
SELECT 'lane ' || id || ' would oversleep job ' || job
FROM (
    SELECT
        id,
        (
            SELECT min(job.id) FROM headgate.job
            WHERE job.lane = line.id AND job.waiting AND job.delayed = true
                AND (line.wakes_at IS NULL OR job.run_at < line.wakes_at)
        ) AS job
    FROM line
    WHERE @may_oversleep
) AS asleep
WHERE job IS NOT NULL
UNION ALL
SELECT 'job ' || id || ' is blocked, and ' || follows || ', which it follows, is final or not marked as followed'
FROM headgate.job
WHERE state = 'blocked'
    AND NOT EXISTS (
        SELECT 1 FROM headgate.job AS leader WHERE leader.id = job.follows AND leader.finished_at IS NULL AND leader.is_followed
    )
    AND NOT EXISTS (SELECT 1 FROM headgate.batch WHERE batch.id = job.follows AND pending > 0)
    AND NOT EXISTS (SELECT 1 FROM headgate.ended_leader AS ended WHERE ended.id = job.follows AND job.id > ended.after)
UNION ALL
SELECT 'batch ' || id || ' counts ' || pending || ' pending jobs and has ' || found
FROM (
    SELECT
        id, pending, (SELECT count(*) FROM headgate.job WHERE job.batch = batch.id AND job.finished_at IS NULL) AS found
    FROM headgate.batch
) AS counted
WHERE pending <> found
UNION ALL
SELECT 'job ' || id || ' waits in a lane that is not there'
FROM headgate.job
WHERE @needs_lane AND NOT EXISTS (SELECT 1 FROM line WHERE line.id = job.lane)
UNION ALL
SELECT 'schedule ' || name || ' counts ' || counted || ' jobs that are not final, and has ' || found
FROM (
    SELECT
        name, open @noted_of_schedule AS counted,
        (SELECT count(*) FROM headgate.job WHERE job.schedule = name AND finished_at IS NULL) AS found
    FROM headgate.schedule
) AS counts
WHERE counted <> found

-- name: holders
-- All jobs that hold permits.
SELECT id, draws, terms, held FROM headgate.job WHERE held <> 0

-- name: buckets_of_permits
-- All buckets that grant permits.
SELECT id, limit_name AS "limit", key, state, opens_at, closed_until FROM headgate.bucket WHERE state LIKE '1:concurrency:%'

-- name: pending_batches
-- Which of these batches have jobs that are not final.
SELECT id FROM headgate.batch WHERE id {any:ids text} AND pending > 0
