-- What nodes do about once a minute, what operators do to queues, and checks that rows agree.

-- part: prunable_job
job.id, job.held, job.buckets, (SELECT count(*) FROM headgate.log_line WHERE log_line.job = job.id) AS lines, job.batch,
job.options, job.follows IS NOT NULL AS is_follower

-- part: some_prunable(those) [postgres]
-- They are locked, so that several nodes delete different ones.
SELECT * FROM (
    SELECT * FROM headgate.job
    WHERE $those AND state {any:states text} AND finished_at < :before AND NOT @has_own_retention
    LIMIT :count FOR UPDATE SKIP LOCKED
) AS locked

-- name: prunable [postgres]
-- Return jobs that finished in these states before then, with the number of log lines of each, and its batch.
-- Their ids were made from :made_since to :made_before, so the primary key has few others among them, however many jobs are
-- kept. Ids that callers chose are below 0 and in no order, so these jobs are found by when they were enqueued. A job that was
-- enqueued by a clock that was ahead is found later by as much.
SELECT @prunable_job
FROM (
    @some_prunable(id >= :made_since::bigint AND id < :made_before::bigint)
    UNION ALL
    @some_prunable(id < 0 AND enqueued_at >= :since AND enqueued_at < :enqueued_before)
) AS job
LIMIT :count

-- name: prunable [sqlite]
-- Return the same of all that finished in that time, for one queue after another, in the order of the index of final jobs.
@final_queues(:states)
SELECT @prunable_job
FROM named
CROSS JOIN job ON job.rowid IN (
    SELECT rowid FROM job
    WHERE state = named.state AND queue = named.queue AND finished_at < :until AND finished_at >= :since
        AND NOT @has_own_retention
    LIMIT :count
)
LIMIT :count

-- part: has_own_retention
(options IS NOT NULL AND {position}(options, '"retention":') > 0)

-- part: counting_found [postgres]
SELECT outside.batch FROM counting CROSS JOIN LATERAL (
    SELECT batch FROM headgate.batch WHERE batch.id = counting.id
    UNION ALL SELECT batch FROM headgate.awaited_leader WHERE leader = counting.id
) AS outside

-- part: counting_found [sqlite]
SELECT inside.batch FROM counting CROSS JOIN batch AS inside ON inside.id = counting.id
UNION
SELECT awaited.batch FROM counting CROSS JOIN awaited_leader AS awaited ON awaited.leader = counting.id

-- part: is_awaited(id, batch)
-- Whether an unfinished job may read the results of a job or batch: it follows it, or a batch or join that counts it, also
-- through others, or has the results of one of these as an argument.
EXISTS (
    WITH RECURSIVE counting (id) AS (
        SELECT $id UNION SELECT $batch UNION
        @counting_found
    )
    SELECT 1 FROM counting
    WHERE EXISTS (SELECT 1 FROM headgate.job AS next WHERE next.follows = counting.id AND next.finished_at IS NULL {no join})
        OR EXISTS (
            SELECT 1 FROM headgate.awaited_result AS awaited
            WHERE awaited.leader = counting.id
                AND EXISTS (SELECT 1 FROM headgate.job AS next WHERE next.id = awaited.reader AND next.finished_at IS NULL {no join})
            {no join}
        )
)

-- part: is_needed
((job.is_followed OR job.batch IS NOT NULL) AND @is_awaited(job.id, job.batch))

-- name: ended_retentions
-- Return jobs whose own retention has ended, without those whose results an unfinished job may read.
SELECT id FROM headgate.job WHERE kept_until <= :now AND NOT @is_needed LIMIT :count

-- name: deletable
-- Return those of these jobs that finished before then.
SELECT @prunable_job FROM headgate.job WHERE id {any:ids job_id} AND {no index}finished_at < :before ORDER BY id

-- name: needed
-- Return those of these final jobs that an unfinished job may need.
SELECT id FROM headgate.job WHERE id {any:ids job_id} AND {no index}finished_at IS NOT NULL AND @is_needed

-- name: lock_prunable
-- Lock those of these jobs that are unchanged and that no other transaction prunes; with :kept_until, those whose own
-- retention has ended by then.
SELECT id, buckets, terms, held
FROM headgate.job
WHERE id {any:ids job_id} AND {no index}finished_at < :before
    AND (:kept_until::bigint IS NULL OR {no index}kept_until <= :kept_until)
{for update skip locked}

-- name: prune_jobs
-- Delete final jobs.
DELETE FROM headgate.job WHERE id {any:ids job_id} AND {no index}finished_at IS NOT NULL

-- name: prune_attempts
DELETE FROM headgate.attempt WHERE job {any:ids job_id}

-- name: prune_lines
DELETE FROM headgate.log_line WHERE job {any:ids job_id}

-- name: prune_awaited_results
DELETE FROM headgate.awaited_result WHERE reader {any:ids job_id}

-- name: prune_job_audit
-- Delete the audit entries of pruned jobs.
DELETE FROM headgate.audit_entry WHERE subject {any:subjects text} AND kind = 'job'

-- part: is_unused_batch
-- A batch goes after its outer one, also if it never had a job: so what a stored batch counts and is gone has been pruned.
NOT EXISTS (SELECT 1 FROM headgate.job WHERE job.batch IS NOT NULL AND job.batch = batch.id {no join})
AND NOT EXISTS (SELECT 1 FROM headgate.batch AS outside WHERE outside.id = batch.batch {no join})
AND NOT EXISTS (
    WITH RECURSIVE within (id) AS (
        SELECT batch.id UNION
        SELECT inside.id FROM within CROSS JOIN headgate.batch AS inside WHERE inside.batch IS NOT NULL AND inside.batch = within.id
    )
    SELECT 1 FROM within WHERE EXISTS (SELECT 1 FROM headgate.job WHERE job.batch IS NOT NULL AND job.batch = within.id {no join})
)
AND NOT (batch.is_join AND EXISTS (SELECT 1 FROM headgate.job WHERE job.follows = batch.id {no join}))
AND NOT @is_awaited(batch.id, batch.batch)

-- name: prune_batches_of
-- Delete those of these batches that were final before then and are not used.
DELETE FROM headgate.batch
WHERE id IN (
    SELECT id FROM headgate.batch
    WHERE id {any:ids job_id} AND {no index}finished_at < :before AND @is_unused_batch
    {for update skip locked}
)

-- name: prune_batches
-- Delete batches that became final in that time and are not used; it reads all batches of that time.
WITH unused AS MATERIALIZED (
    SELECT id FROM headgate.batch
    WHERE finished_at < :until AND finished_at >= :since AND @is_unused_batch
    LIMIT :count
    {for update skip locked}
)
DELETE FROM headgate.batch
WHERE id IN (SELECT id FROM unused)
RETURNING id

-- name: prune_awaited_leaders
-- Delete what joins counted that are deleted.
DELETE FROM headgate.awaited_leader WHERE batch {any:ids job_id}

-- part: evict(table, condition) [postgres]
WITH idle AS MATERIALIZED (
    SELECT id, version FROM headgate.$table WHERE $condition LIMIT :count FOR UPDATE SKIP LOCKED
),
evicted AS (
    DELETE FROM headgate.$table WHERE (id, version) IN (SELECT id, version FROM idle) RETURNING id
)
DELETE FROM headgate.known_$table WHERE id IN (SELECT id FROM evicted)

-- part: evict(table, condition) [sqlite]
DELETE FROM $table WHERE id IN (SELECT id FROM $table WHERE $condition LIMIT :count)

-- name: evict_buckets
-- Delete buckets that are in the same state as a new one and have no lane behind them.
@evict(bucket, opens_at IS NULL AND idle_at <= :limit_now AND closed_until <= :limit_now)

-- name: evict_notes
-- Delete the stored answers to plain code that have expired.
DELETE FROM headgate.bucket_note
WHERE (bucket, id) IN (SELECT bucket, id FROM headgate.bucket_note WHERE until <= :limit_now LIMIT :count)

-- name: evict_reserved_keys
-- Delete the unique keys that stay taken no longer.
DELETE FROM headgate.reserved_key
WHERE (task, unique_key) IN (
    SELECT task, unique_key FROM headgate.reserved_key WHERE until <= :now LIMIT :count {for update skip locked}
)

-- part: is_empty_lane [postgres]
gated AND since IS NULL AND wakes_at IS NULL AND waiting = 0

-- part: is_empty_lane [sqlite]
-- No running job can return to it. After ANALYZE, SQLite would read all jobs to make an index of the running ones.
gated AND waiting = 0 AND id NOT IN (SELECT lane FROM job INDEXED BY job_running WHERE state = 'running')

-- part: is_not_last(table, turns)
-- Whether it is not the one with the highest virtual time of a queue (of several, the same for all), where the line goes on.
id NOT IN (
    WITH RECURSIVE fair (queue) AS (
        SELECT min(queue) FROM headgate.$table WHERE $turns UNION ALL
        SELECT (SELECT min(next.queue) FROM headgate.$table AS next WHERE next.queue > fair.queue AND $turns)
        FROM fair WHERE queue IS NOT NULL
    )
    SELECT (SELECT id FROM headgate.$table AS last WHERE last.queue = fair.queue AND $turns ORDER BY virtual_time DESC{then by id} LIMIT 1)
    FROM fair WHERE queue IS NOT NULL
)

-- part: is_not_last_lane
@is_not_last(lane, virtual_time IS NOT NULL AND group_id IS NULL)

-- name: evict_lanes
-- Delete empty lanes. A job that comes to such a lane later brings all that is needed to create it again.
@evict(lane, @is_empty_lane AND @is_not_last_lane)

-- name: leave_line
-- Take groups out of line of which no lane is in line: cancelled jobs leave them there. Their virtual times stand still, so
-- they are the first. Whoever puts a lane in line raises the version of its group.
WITH seen AS MATERIALIZED (
    SELECT id, version FROM headgate.turn_group
    WHERE in_line
        AND NOT EXISTS (
            SELECT 1 FROM headgate.lane WHERE lane.group_id = turn_group.id AND behind IS NULL AND since IS NOT NULL
        )
    LIMIT :count
)
UPDATE headgate.turn_group SET in_line = false, version = version + 1
WHERE (id, version) IN (
    SELECT id, version FROM headgate.turn_group
    WHERE (id, version) IN (SELECT id, version FROM seen)
    {for update skip locked}
)

-- name: evict_turn_groups
-- Delete groups that have no lane, but for the one with the highest virtual time of a queue.
DELETE FROM headgate.turn_group
WHERE (id, version) IN (
    SELECT id, version FROM headgate.turn_group
    WHERE (id, version) IN (
        SELECT id, version FROM headgate.turn_group AS seen
        WHERE NOT EXISTS (SELECT 1 FROM headgate.lane WHERE lane.group_id = seen.id AND gated) AND @is_not_last(turn_group, true)
        LIMIT :count
    )
    {for update skip locked}
)

-- name: pause_queue
-- Keep claims from taking jobs of a queue; inserts no row if it is already paused.
INSERT INTO headgate.paused_queue (queue, paused_at) VALUES (:queue, :now)
ON CONFLICT (queue) DO NOTHING

-- name: resume_queue
DELETE FROM headgate.paused_queue WHERE queue = :queue

-- part: lines [postgres]
-- Lanes as they will be when arrivals are merged. If a transaction had locked all jobs of a lane, that lane may sleep
-- for a second; lanes without buckets never sleep, and running jobs need none.
SELECT
    coalesce(lane.id, arrived.lane) AS id,
    coalesce(lane.waiting, 0) + coalesce(arrived.jobs, 0) AS waiting,
    lane.behind,
    least(lane.wakes_at, arrived.wakes_at) AS wakes_at,
    coalesce(lane.gated, arrived.gated) AND lane.since IS NULL AND NOT coalesce(arrived.is_ready, false) AS is_asleep,
    least(lane.wakes_at, arrived.wakes_at) <= :now::bigint + 1000000 AS wakes_soon
FROM headgate.lane
FULL JOIN (
    SELECT lane, sum(jobs) AS jobs, bool_or(is_ready) AS is_ready, min(wakes_at) AS wakes_at, bool_or(buckets <> '[]') AS gated
    FROM headgate.arrival GROUP BY lane
) AS arrived ON arrived.lane = lane.id

-- part: lines [sqlite]
SELECT id, waiting, behind, wakes_at, since IS NULL AS is_asleep, false AS wakes_soon FROM lane

-- part: needs_lane [postgres]
waiting

-- part: needs_lane [sqlite]
state IN ('waiting', 'running')

-- part: faults_of_several_writers [postgres]
-- What only they can cause: fronts of lanes that are beyond jobs, rows that are there twice, unknown ids, jobs without claims.
SELECT 'lane ' || id || ' begins after job «' || job || '»'
FROM (
    SELECT
        id,
        (
            SELECT min(job.id) FROM headgate.job
            WHERE job.lane = lane.id AND job.waiting AND NOT job.delayed AND job.rank < lane.front
                AND NOT EXISTS (
                    SELECT 1 FROM headgate.arrival
                    WHERE arrival.lane = lane.id AND arrival.is_ready AND coalesce(arrival.rank, @lowest_rank) <= job.rank
                )
        ) AS job
    FROM headgate.lane
) AS begun
WHERE job IS NOT NULL
UNION ALL
SELECT 'lane ' || id || ' is there ' || count(*) || ' times' FROM headgate.lane GROUP BY id HAVING count(*) > 1
UNION ALL
SELECT 'lane ' || coalesce(lane.id, known_lane.id) || ' and the ids of all lanes disagree'
FROM headgate.lane FULL JOIN headgate.known_lane ON known_lane.id = lane.id
WHERE lane.id IS NULL OR known_lane.id IS NULL
UNION ALL
SELECT 'bucket ' || id || ' is there ' || count(*) || ' times' FROM headgate.bucket GROUP BY id HAVING count(*) > 1
UNION ALL
SELECT 'bucket ' || coalesce(bucket.id, known_bucket.id) || ' and the ids of all buckets disagree'
FROM headgate.bucket FULL JOIN headgate.known_bucket ON known_bucket.id = bucket.id
WHERE bucket.id IS NULL OR known_bucket.id IS NULL
UNION ALL
SELECT 'job «' || id || '» runs on node ' || node || ', which has no claim with it'
FROM headgate.job
WHERE state = 'running' AND (node, id) NOT IN (SELECT node, unnest(jobs) FROM headgate.claim)

-- part: faults_of_several_writers [sqlite]
SELECT NULL WHERE false

-- part: may_oversleep [postgres]
is_asleep

-- part: may_oversleep [sqlite]
true

-- part: noted_of_schedule [postgres]
+ coalesce((SELECT sum(note.open) FROM headgate.schedule_note AS note WHERE note.schedule = name), 0)

-- part: noted_of_schedule [sqlite]

-- part: has_not_succeeded
state IN ('failed', 'cancelled', 'skipped')

-- name: check
-- Return a sentence for each contradiction between jobs, lanes and buckets.
WITH line AS MATERIALIZED (@lines)
SELECT 'lane ' || id || ' counts ' || waiting || ' waiting jobs and has ' || found
FROM (
    SELECT
        id, waiting,
        (SELECT count(*) FROM headgate.job WHERE job.lane = line.id AND job.waiting AND NOT job.delayed)
            + (SELECT count(*) FROM headgate.job WHERE job.lane = line.id AND job.waiting AND job.delayed) AS found
    FROM line
) AS counted
WHERE waiting <> found
UNION ALL
SELECT 'lane ' || id || ' is due, and its group is not in line'
FROM headgate.lane
WHERE group_id IS NOT NULL AND behind IS NULL AND since IS NOT NULL
    AND group_id NOT IN (SELECT id FROM headgate.turn_group WHERE in_line)
UNION ALL
SELECT 'lane ' || id || ' waits behind bucket ' || behind || ', which has no timer'
FROM line
WHERE behind IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM headgate.bucket WHERE bucket.id = line.behind AND opens_at IS NOT NULL)
UNION ALL
SELECT 'lane ' || id || ' sleeps although job «' || job || '» is ready'
FROM (
    SELECT
        id,
        (SELECT min(job.id) FROM headgate.job WHERE job.lane = line.id AND job.waiting AND NOT job.delayed) AS job
    FROM line
    WHERE is_asleep AND wakes_soon IS NOT TRUE
) AS asleep
WHERE job IS NOT NULL
UNION ALL
SELECT 'lane ' || id || ' would oversleep job «' || job || '»'
FROM (
    SELECT
        id,
        (
            SELECT min(job.id) FROM headgate.job
            WHERE job.lane = line.id AND job.waiting AND job.delayed
                AND (line.wakes_at IS NULL OR job.run_at < line.wakes_at)
        ) AS job
    FROM line
    WHERE @may_oversleep
) AS asleep
WHERE job IS NOT NULL
UNION ALL
@faults_of_several_writers
UNION ALL
SELECT 'job «' || id || '» is blocked, and «' || follows || '», which it follows, is final or not marked as followed'
FROM headgate.job
WHERE blocked
    AND NOT EXISTS (
        SELECT 1 FROM headgate.job AS leader WHERE leader.id = job.follows AND leader.finished_at IS NULL AND leader.is_followed
    )
    AND NOT EXISTS (SELECT 1 FROM headgate.batch WHERE batch.id = job.follows AND pending > 0)
    AND NOT EXISTS (SELECT 1 FROM headgate.ended_leader AS ended WHERE ended.id = job.follows AND job.id > ended.after)
UNION ALL
SELECT 'batch «' || id || '» counts ' || pending || ' pending jobs and has ' || found
FROM (
    SELECT
        id, pending,
        (SELECT count(*) FROM headgate.job WHERE job.batch = batch.id AND job.finished_at IS NULL)
            + (SELECT count(*) FROM headgate.batch AS inside WHERE inside.batch = batch.id AND inside.pending > 0)
            + (SELECT count(*) FROM headgate.awaited_leader AS awaited WHERE awaited.batch = batch.id AND ended_as IS NULL)
            AS found
    FROM headgate.batch
) AS counted
WHERE pending <> found
UNION ALL
SELECT 'batch «' || id || '» has the id of a job'
FROM headgate.batch
WHERE EXISTS (SELECT 1 FROM headgate.job WHERE job.id = batch.id)
UNION ALL
SELECT 'join «' || batch || '» does not count «' || leader || '» as it is'
FROM (
    SELECT
        awaited.batch, awaited.leader, awaited.ended_as,
        coalesce(CASE WHEN job.finished_at IS NOT NULL THEN job.state END, nullif(@batch_state, 'pending')) AS state
    FROM headgate.awaited_leader AS awaited
    LEFT JOIN headgate.job ON job.id = awaited.leader
    LEFT JOIN headgate.batch ON batch.id = awaited.leader
    WHERE job.id IS NOT NULL OR batch.id IS NOT NULL
) AS awaited
WHERE coalesce(ended_as, '') <> coalesce(state, '')
    AND NOT EXISTS (
        SELECT 1 FROM headgate.ended_leader AS ended
        WHERE ended.id = awaited.leader AND awaited.ended_as IS NULL AND awaited.batch > ended.after
    )
UNION ALL
SELECT 'job «' || id || '» waits in a lane that is not there'
FROM headgate.job
WHERE @needs_lane AND NOT EXISTS (SELECT 1 FROM line WHERE line.id = job.lane)
UNION ALL
SELECT 'job «' || id || '» has the rank ' || rank || ' instead of ' || (run_at - priority * @step)
FROM headgate.job
WHERE finished_at IS NULL AND rank <> run_at - priority * @step
UNION ALL
SELECT 'job «' || id || '» is ' || state || ', and is found as ' || coalesce(failed_as, 'none that failed')
FROM headgate.job
WHERE coalesce(failed_as, '') <> CASE WHEN @has_not_succeeded THEN state ELSE '' END
    OR coalesce(failed_at, 0) <> CASE WHEN @has_not_succeeded THEN finished_at ELSE 0 END
UNION ALL
SELECT 'job «' || id || '» is ' || state || CASE WHEN holds_key THEN ' and holds' ELSE ' and does not hold' END || ' its unique key'
FROM headgate.job
WHERE holds_key <> (state = 'running' AND unique_key IS NOT NULL)
UNION ALL
SELECT 'job «' || id || '» is ' || state || ' and has the end of a retention'
FROM headgate.job
WHERE kept_until IS NOT NULL AND finished_at IS NULL
UNION ALL
SELECT 'tag ' || tag || ' has job «' || job || '», which does not have it'
FROM headgate.job_tag
WHERE NOT EXISTS (
    SELECT 1 FROM headgate.job WHERE job.id = job_tag.job AND {position}(replace(job.options, ']', ','), '"' || tag || '",') > 0
)
UNION ALL
SELECT 'schedule ' || name || ' counts ' || counted || ' jobs that are not final, and has ' || found
FROM (
    SELECT
        name, open @noted_of_schedule AS counted,
        (SELECT count(*) FROM headgate.job WHERE job.schedule = name AND batch IS NULL AND finished_at IS NULL)
            + (SELECT count(*) FROM headgate.batch WHERE batch.schedule = name AND finished_at IS NULL) AS found
    FROM headgate.schedule
) AS counts
WHERE counted <> found

-- name: holders
-- Return all jobs that hold permits.
SELECT id, buckets, terms, held FROM headgate.job WHERE held <> 0

-- name: all_buckets
SELECT id, limit_name AS "limit", key, state, opens_at, closed_until FROM headgate.bucket

-- name: all_lanes
-- Return what identifies each lane, and each that arrivals will make.
SELECT id, queue, buckets, wait_mode FROM headgate.lane @lanes_of_arrivals

-- part: lanes_of_arrivals [postgres]
UNION SELECT lane, queue, buckets, wait_mode FROM headgate.arrival

-- part: lanes_of_arrivals [sqlite]

-- name: places_of_jobs
-- Return how many jobs wait in each lane with what they are in it by: their queue, buckets and terms; and one of them.
SELECT min(id) AS id, count(*) AS jobs, lane, queue, buckets, terms, held | passed AS exempt
FROM headgate.job
WHERE waiting
GROUP BY lane, queue, buckets, terms, held | passed

-- name: jobs_with_own_ids
-- Return the ids that callers chose, with the numbers that they are stored under.
SELECT id, own_id FROM headgate.job WHERE own_id IS NOT NULL

-- name: lost_tags [postgres]
-- Return the jobs that are not found by a tag that they have. A tag has no quotes, commas and brackets.
SELECT job.id AS job, kept.tag, 'headgate.job_tag' AS place
FROM headgate.job
CROSS JOIN unnest(string_to_array(replace(substring(options FROM '"tags":\[([^]]*)\]'), '"', ''), ',')) AS kept (tag)
WHERE options IS NOT NULL AND strpos(options, '"tags":[') > 0
    AND NOT EXISTS (SELECT 1 FROM headgate.job_tag WHERE job_tag.tag = kept.tag AND job_tag.job = job.id)

-- name: lost_tags [sqlite]
SELECT job.id AS job, kept.value AS tag, 'job_tag' AS place
FROM job
CROSS JOIN json_each(iif(json_valid(job.options), job.options, '[]'), '$.tags') AS kept
WHERE job.options IS NOT NULL AND instr(job.options, '"tags":[') > 0
    AND NOT EXISTS (SELECT 1 FROM job_tag WHERE job_tag.tag = kept.value AND job_tag.job = job.id)

-- name: index_checks [postgres]
-- Return, for each B-tree of these tables, the statement that compares it with its table; none without amcheck.
SELECT
    index.oid::regclass::text AS name,
    format('SELECT %I.bt_index_check(%s::oid::regclass, true)', place.nspname, index.oid) AS statement
FROM pg_class AS index
JOIN pg_am AS kind ON kind.oid = index.relam AND kind.amname = 'btree'
CROSS JOIN pg_extension AS extension
JOIN pg_namespace AS place ON place.oid = extension.extnamespace
WHERE extension.extname = 'amcheck' AND index.relkind = 'i'
    AND index.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'headgate.job'::regclass)
ORDER BY index.relname

-- name: pending_batches
-- Return which of these batches have jobs that are not final.
SELECT id FROM headgate.batch WHERE id {any:ids job_id} AND pending > 0
