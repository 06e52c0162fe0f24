-- What users read: jobs and batches, waiting jobs and what they wait for, buckets, and starts.

-- part: highest_id
9223372036854775807

-- part: lowest_id
-9223372036854775807

-- part: lane_counts [postgres]
-- How many jobs wait in each lane; arrivals that are not merged yet are rows of their own.
SELECT id, queue, waiting FROM headgate.lane UNION ALL SELECT lane, queue, jobs FROM headgate.arrival

-- part: lane_counts [sqlite]
SELECT id, queue, waiting FROM lane

-- part: arrived [postgres]
coalesce(arrived.jobs, 0)::bigint

-- part: arrived [sqlite]
0

-- part: job_record
-- A job as users read it: the fields of `JobRecord` that are not computed here are columns.
{record:job but state, payload, result, throttled_until, waits_for, lane_waiting, is_blocked},
CASE WHEN job.state = 'blocked' THEN 'waiting' ELSE job.state END AS state,
CAST(job.payload AS text) AS payload, CAST(job.result AS text) AS result,
CASE
    WHEN bucket.opens_at > :limit_now AND bucket.opens_at < :never::bigint THEN :now + bucket.opens_at - :limit_now
END AS throttled_until,
CASE WHEN bucket.opens_at > :limit_now THEN {array:bucket.limit_name, bucket.key} END AS waits_for,
CASE WHEN job.waiting THEN coalesce(lane.waiting, 0) + @arrived ELSE 0 END AS lane_waiting,
job.state = 'blocked' AS is_blocked

-- part: job_filter
-- The conditions of a filter; a parameter that is NULL is no condition. PostgreSQL plans it for its values. One of :needle
-- and :group_needle is text that the buckets of a job have to contain. Where many jobs wait, few lanes are open, and few
-- have unmerged arrivals.
(:state::text IS NULL OR job.state = :state OR (:state = 'waiting' AND job.state = 'blocked'))
AND (:queue::text IS NULL OR job.queue = :queue)
AND (:task::text IS NULL OR job.task = :task)
AND (:unique_key::text IS NULL OR job.unique_key = :unique_key)
AND (:schedule::text IS NULL OR job.schedule = :schedule)
AND (:batch::job_id IS NULL OR job.batch = :batch::job_id)
AND (:node::text IS NULL OR job.node = :node)
AND (:enqueued_after::bigint IS NULL OR job.enqueued_at >= :enqueued_after)
AND (:enqueued_before::bigint IS NULL OR job.enqueued_at < :enqueued_before)
AND (:finished_after::bigint IS NULL OR job.finished_at >= :finished_after)
AND (:finished_before::bigint IS NULL OR job.finished_at < :finished_before)
AND (:needle::text IS NULL OR {position}(job.buckets, :needle) > 0 OR {position}(job.buckets, :group_needle::text) > 0)
AND (:error::text IS NULL OR substr({field:job.error.type}, 1, length(:error)) = :error)
AND (:text::text IS NULL OR ({position}(job.payload, :text) > 0 AND substr(job.payload, 1, 8) <> 'encoded:'))
AND (
    :annotation_needle::text IS NULL
    OR {position}(@annotations_in_commas, :annotation_needle) > 0
    OR {position}(@annotations_in_commas, :annotation_as_text) > 0
)
AND (:tag_needle::text IS NULL OR {position}(replace(job.options, ']', ','), :tag_needle) > 0)
AND (:header_needle::text IS NULL OR {position}(',' || substr(job.headers, 2), :header_needle) > 0)
AND (:view::text IS NULL OR :view = 'blocked' OR job.waiting)
AND (coalesce(:view::text, '') <> 'blocked' OR job.state = 'blocked')
AND (coalesce(:view::text, '') <> 'scheduled' OR (job.delayed AND job.run_at > :now))
AND (:view::text IS NULL OR :view NOT IN ('throttled', 'ready') OR NOT (job.delayed AND job.run_at > :now))
AND (:view::text IS NULL OR :view NOT IN ('throttled', 'ready') OR (:view = 'throttled') = (job.buckets <> '[]' AND coalesce(
    -- The planner would read all lanes for a NOT EXISTS.
    (SELECT bucket.opens_at FROM headgate.lane JOIN headgate.bucket ON bucket.id = lane.behind WHERE lane.id = job.lane)
        > :limit_now,
    false
)))

-- part: annotations_in_commas
-- The annotations of a job with commas in place of the braces around them.
',' || substr(job.annotations, 2, {greatest}(length(job.annotations) - 2, 0)) || ','

-- part: place [postgres]
id

-- part: place [sqlite]
rowid

-- part: lanes_that_came [postgres]
-- Unmerged arrivals: their lane may not exist yet, or seem to be empty.
UNION ALL SELECT lane FROM headgate.arrival

-- part: lanes_that_came [sqlite]

-- part: open_lanes
-- Lanes that wait behind no closed bucket, each found by an index of such lanes: those that are due, asleep or without
-- buckets, and those behind buckets that have opened. Lanes without buckets may be empty.
SELECT id FROM headgate.lane WHERE gated AND behind IS NULL AND since IS NOT NULL AND group_id IS NULL
UNION ALL SELECT id FROM headgate.lane WHERE group_id IS NOT NULL AND behind IS NULL AND since IS NOT NULL
UNION ALL SELECT id FROM headgate.lane WHERE gated AND since IS NULL AND wakes_at IS NOT NULL
UNION ALL SELECT id FROM headgate.lane WHERE id {any:ungated text}
UNION ALL SELECT lane.id FROM headgate.bucket @looked_up(lane, behind = bucket.id) WHERE bucket.opens_at <= :limit_now
@lanes_that_came

-- part: closed_lanes
SELECT lane.id FROM headgate.bucket @looked_up(lane, behind = bucket.id) WHERE bucket.opens_at > :limit_now

-- part: its_jobs(which)
@looked_up(job, lane = line.id AND waiting AND $which)

-- part: place_of_tagged [postgres]
job_tag.job

-- part: place_of_tagged [sqlite]
(SELECT job.rowid FROM job WHERE job.id = job_tag.job)

-- part: known_jobs
-- The jobs that can match a filter, where an index finds them; :by names the index. Jobs that wait in :lanes for some
-- buckets and pass them are in other lanes.
SELECT @place FROM headgate.job
WHERE :by = 'failed' AND failed_at >= coalesce(:finished_after::bigint, 0)
UNION ALL
SELECT @place FROM headgate.job WHERE :by = 'running' AND @is_running
UNION ALL
SELECT @place FROM headgate.job WHERE :by = 'waiting' AND waiting AND NOT delayed
UNION ALL
SELECT @place FROM headgate.job WHERE :by = 'waiting' AND waiting AND delayed
UNION ALL
SELECT job.@place FROM (@open_lanes) AS line @its_jobs(NOT job.delayed) WHERE :by = 'ready'
UNION ALL
SELECT job.@place FROM (@open_lanes) AS line @its_jobs(job.delayed) WHERE :by = 'ready'
UNION ALL
SELECT job.@place FROM (@closed_lanes) AS line @its_jobs(NOT job.delayed) WHERE :by = 'throttled'
UNION ALL
SELECT job.@place FROM (@closed_lanes) AS line @its_jobs(job.delayed) WHERE :by = 'throttled'
UNION ALL
SELECT @place FROM headgate.job WHERE :by = 'bucket' AND waiting AND NOT delayed AND lane {any:lanes text}
UNION ALL
SELECT @place FROM headgate.job WHERE :by = 'bucket' AND waiting AND delayed AND lane {any:lanes text}
UNION ALL
SELECT @place FROM headgate.job WHERE :by = 'bucket' AND waiting AND (held | passed) <> 0
UNION ALL
SELECT @place FROM headgate.job WHERE :by IN ('blocked', 'waiting', 'bucket') AND blocked
UNION ALL
SELECT @place FROM headgate.job WHERE :by = 'batch' AND batch = :batch::job_id
UNION ALL
SELECT @place FROM headgate.job WHERE :by = 'schedule' AND schedule = :schedule
UNION ALL
SELECT @place_of_tagged FROM headgate.job_tag WHERE :by = 'tag' AND job_tag.tag = :tag

-- part: beyond_cursor
{no index}job.id < coalesce(:before::job_id, @highest_id) AND {no index}job.id > coalesce(:after::job_id, @lowest_id)

-- part: with_lane
LEFT JOIN headgate.lane ON lane.id = job.lane AND job.waiting
LEFT JOIN headgate.bucket ON bucket.id = lane.behind
@with_arrivals

-- part: with_arrivals [postgres]
-- Those of the lanes of these jobs. OFFSET 0 keeps the planner from adding up those of all lanes and joining them.
LEFT JOIN LATERAL (
    SELECT sum(jobs) AS jobs
    FROM (SELECT jobs FROM headgate.arrival WHERE arrival.lane = job.lane AND job.waiting OFFSET 0) AS of_lane
) AS arrived ON true

-- part: with_arrivals [sqlite]

-- name: jobs_by_id
-- Return these jobs; with :final, only those that are final.
SELECT @job_record
FROM headgate.job @with_lane
WHERE job.id {any:ids job_id} AND (NOT :final::boolean OR job.finished_at IS NOT NULL)

-- part: newest
DESC

-- part: oldest
ASC

-- part: newest_beyond_cursor(id)
$id < coalesce(:cursor::job_id, @highest_id)

-- part: oldest_beyond_cursor(id)
$id > coalesce(:cursor::job_id, @lowest_id)

-- part: newest_to_last(id)
@newest_beyond_cursor($id) AND $id >= coalesce(:last::job_id, @lowest_id)

-- part: oldest_to_last(id)
@oldest_beyond_cursor($id) AND $id <= coalesce(:last::job_id, @highest_id)

-- part: all
headgate.job WHERE true

-- part: failed
headgate.job WHERE failed_at IS NOT NULL

-- part: tagged
headgate.job_tag @looked_up(job, job.id = job_tag.job) WHERE job_tag.tag = :tag

-- part: page(jobs, id, order)
SELECT @job_record
FROM (SELECT job.* FROM @$jobs AND @$order_to_last($id) AND @job_filter ORDER BY $id @$order LIMIT :count) AS job @with_lane
ORDER BY job.id @$order

-- name: jobs(which: all failed, order: newest oldest)
-- Return jobs for a page, of all jobs, or of those that failed, or were cancelled or skipped; none beyond :last, if that is
-- not NULL.
@page($which, job.id, $order)

-- name: jobs_tagged(order: newest oldest)
-- The same of jobs with the tag of a filter.
@page(tagged, job_tag.job, $order)

-- part: last_of(jobs, id, order)
SELECT $id FROM $jobs AND @$order_beyond_cursor($id) ORDER BY $id @$order LIMIT 2 OFFSET :skip

-- name: last_read(which: all failed, order: newest oldest)
-- Return the id of the last job that is read if so many are read in this order, and the id of the next job.
@last_of(@$which, job.id, $order)

-- name: last_read_tagged(order: newest oldest)
@last_of(headgate.job_tag WHERE job_tag.tag = :tag, job_tag.job, $order)

-- name: count_jobs(which: all tagged)
-- Count the jobs that match a filter, up to a maximum.
SELECT count(*) FROM (SELECT 1 FROM @$which AND @beyond_cursor AND @job_filter LIMIT :most) AS passing

-- name: count_newest
-- Count the same among jobs that are not before :last.
SELECT count(*)
FROM (SELECT 1 FROM headgate.job WHERE id >= coalesce(:last::job_id, @lowest_id) AND @job_filter ORDER BY id DESC LIMIT :most) AS passing

-- name: count_known
-- Count the jobs that an index finds, up to a maximum.
SELECT count(*) FROM (SELECT 1 FROM (@known_jobs) AS known LIMIT :most) AS counted

-- name: count_known_jobs
-- Count the matching jobs among the first that an index finds.
SELECT count(*)
FROM (SELECT DISTINCT @place AS place FROM (SELECT @place FROM (@known_jobs) AS known LIMIT :most) AS few) AS known
WHERE (SELECT true FROM headgate.job WHERE job.@place = known.place AND @job_filter)

-- name: jobs_known(order: newest oldest) [postgres]
-- Return the same pages where an index finds the jobs and they are few: they are sorted.
SELECT @job_record
FROM (
    SELECT job.*
    FROM (SELECT DISTINCT id FROM (@known_jobs) AS known) AS known @looked_up(job, job.id = known.id)
    WHERE @$order_beyond_cursor(job.id) AND @job_filter
    ORDER BY job.id @$order
    LIMIT :count
) AS job @with_lane
ORDER BY job.id @$order

-- name: jobs_known(order: newest oldest) [sqlite]
SELECT @job_record
FROM (
    SELECT rowid AS place FROM job
    WHERE job.rowid IN (@known_jobs) AND @$order_beyond_cursor(+job.id) AND @job_filter
    ORDER BY +id @$order
    LIMIT :count
) AS page
CROSS JOIN job ON job.rowid = page.place @with_lane
ORDER BY job.id @$order

-- part: all_lanes [postgres]
headgate.known_lane

-- part: all_lanes [sqlite]
lane

-- name: queues_of_lanes
-- Return the queues that have lanes, each found by index.
WITH RECURSIVE named (queue) AS (
    SELECT min(queue) FROM @all_lanes
    UNION ALL
    SELECT (SELECT min(each.queue) FROM @all_lanes AS each WHERE each.queue > named.queue) FROM named WHERE queue IS NOT NULL
)
SELECT queue FROM named WHERE queue IS NOT NULL

-- part: lanes_to_search [postgres]
-- The lanes whose ids do not follow from a queue and one bucket, and those of unmerged arrivals.
SELECT id, buckets FROM headgate.lane WHERE strpos(buckets, '"],["') > 0 OR wait_mode <> ''
UNION ALL SELECT lane, buckets FROM headgate.arrival

-- part: lanes_to_search [sqlite]
SELECT id, buckets FROM lane WHERE instr(buckets, '"],["') > 0 OR wait_mode <> ''

-- name: count_lanes_to_search
-- Count the lanes that `lanes_with_bucket` searches, up to a maximum.
SELECT count(*) FROM (SELECT 1 FROM (@lanes_to_search) AS line LIMIT :most) AS counted

-- name: lanes_with_bucket
-- Return the lanes that use a bucket: :lanes, which have no other one, and those with a needle among their buckets.
SELECT id FROM headgate.lane WHERE id {any:lanes text}
UNION
SELECT id FROM (@lanes_to_search) AS line WHERE {position}(buckets, :needle) > 0 OR {position}(buckets, :group_needle) > 0

-- name: batches_by_id
SELECT {record:batch} FROM headgate.batch WHERE id {any:ids job_id}

-- name: batches
-- Return a page of batches, newest first.
SELECT {record:batch}
FROM headgate.batch
WHERE NOT is_join AND id < coalesce(:cursor::job_id, @highest_id)
ORDER BY id DESC
LIMIT :count

-- name: job_ids
-- Return the ids of jobs that begin so, newest first; of those with an id of their own, the first ones.
SELECT id
FROM (
    SELECT *
    FROM (
        SELECT id FROM headgate.job WHERE id BETWEEN :lowest::bigint AND :highest::bigint
        ORDER BY id DESC LIMIT :count
    ) AS made
    UNION ALL
    SELECT *
    FROM (
        SELECT id FROM headgate.job WHERE own_id >= :prefix::text AND own_id < :prefix::text || '~'
        ORDER BY own_id LIMIT :count
    ) AS own
) AS job
ORDER BY id DESC
LIMIT :count

-- name: batch_ids
-- Return the ids of batches that begin so, newest first.
SELECT id FROM headgate.batch WHERE id BETWEEN :lowest::bigint AND :highest::bigint ORDER BY id DESC LIMIT :count

-- name: batches_pending
-- Return a page of the batches that are not final, newest first.
SELECT {record:batch}
FROM headgate.batch
WHERE pending > 0 AND NOT is_join AND id < coalesce(:cursor::job_id, @highest_id)
ORDER BY id DESC
LIMIT :count

-- part: list_of(values) [postgres]
coalesce(json_agg($values), '[]')

-- part: list_of(values) [sqlite]
json_group_array($values)

-- name: tasks_of_batches
-- Return the tasks of up to :most jobs of each batch, whichever they are, by name.
SELECT batch.id, (
    SELECT @list_of(task)
    FROM (
        SELECT DISTINCT task
        FROM (SELECT task FROM headgate.job WHERE job.batch IS NOT NULL AND job.batch = batch.id LIMIT :most) AS some_jobs
        ORDER BY task
    ) AS named
) AS tasks
FROM headgate.batch
WHERE batch.id {any:ids job_id}

-- part: counted
-- A batch, the batches in it, and the leaders that these count.
counted (id) AS (SELECT id FROM headgate.batch WHERE id = :id::job_id UNION @counted_by_found)

-- part: counted_by_found [postgres]
SELECT inside.id FROM counted CROSS JOIN LATERAL (
    SELECT id FROM headgate.batch WHERE batch IS NOT NULL AND batch = counted.id
    UNION ALL SELECT leader FROM headgate.awaited_leader WHERE batch = counted.id
) AS inside

-- part: counted_by_found [sqlite]
SELECT inside.id FROM counted CROSS JOIN batch AS inside ON inside.batch = counted.id
UNION
SELECT awaited.leader FROM counted CROSS JOIN awaited_leader AS awaited ON awaited.batch = counted.id

-- part: first_in_counted
-- The first jobs after :after of a batch: what is read does not grow with the batch.
SELECT id FROM headgate.job WHERE batch IS NOT NULL AND batch = counted.id AND id > :after::job_id ORDER BY id LIMIT :count

-- part: first_counted_jobs [postgres]
SELECT first.id FROM counted CROSS JOIN LATERAL (@first_in_counted) AS first

-- part: first_counted_jobs [sqlite]
SELECT job.id FROM counted CROSS JOIN job ON job.id IN (@first_in_counted)

-- name: jobs_of_batch
-- Return a page of the ids of the jobs that a batch counts, also of those in batches in it and of leaders of a join.
WITH RECURSIVE @counted
SELECT id FROM (
    @first_counted_jobs
    UNION ALL
    SELECT id FROM headgate.job WHERE id IN (SELECT id FROM counted) AND id > :after::job_id
) AS found
ORDER BY id
LIMIT :count

-- name: pruned_members
-- Return how many members of a batch, and of what it counts, are not stored and were not skipped; 1 if it is not itself.
WITH RECURSIVE @counted
SELECT coalesce(sum(total - skipped - (
    SELECT count(*) FROM (
        SELECT state FROM headgate.job WHERE job.batch IS NOT NULL AND job.batch = counted.id
        UNION ALL SELECT @batch_state FROM headgate.batch WHERE batch.batch IS NOT NULL AND batch.batch = counted.id
        UNION ALL SELECT ended_as FROM headgate.awaited_leader WHERE awaited_leader.batch = counted.id AND leader IN (
            SELECT id FROM headgate.job WHERE id = leader UNION ALL SELECT id FROM headgate.batch WHERE id = leader
        )
    ) AS member
    WHERE coalesce(state, '') <> 'skipped'
)), 1)
FROM counted @looked_up(batch, batch.id = counted.id)

-- name: leaders_of_job
-- Return what a job follows; where it follows a join, the leaders that this counts.
SELECT leader.id, job.task, coalesce(job.state, @batch_state, leader.ended_as) AS state, leader.outcome AS needs
FROM (
    SELECT coalesce(awaited.leader, job.follows) AS id, awaited.ended_as, {field:origin.on} AS outcome
    FROM headgate.job
    LEFT JOIN headgate.awaited_leader AS awaited ON awaited.batch = job.follows
    WHERE job.id = :id::job_id AND job.follows IS NOT NULL
    ORDER BY 1
    LIMIT :count
) AS leader
LEFT JOIN headgate.job ON job.id = leader.id
LEFT JOIN headgate.batch ON batch.id = leader.id
ORDER BY leader.id

-- part: batch_state
CASE
    WHEN batch.pending > 0 THEN 'pending'
    WHEN batch.failed > 0 THEN 'failed'
    WHEN batch.cancelled > 0 THEN 'cancelled'
    WHEN batch.skipped > 0 AND batch.succeeded = 0 THEN 'skipped'
    WHEN batch.id IS NOT NULL THEN 'succeeded'
END

-- name: followers_of_job
-- Return the jobs that follow a job or a batch, also through a join.
SELECT job.id, job.task, job.state, {field:origin.on} AS needs
FROM (
    SELECT :id::job_id AS leader
    UNION ALL
    SELECT batch FROM headgate.awaited_leader WHERE leader = :id::job_id
) AS led
@first_followers
ORDER BY job.id
LIMIT :count

-- part: first_followers [postgres]
-- Where one batch has most of all followers, the planner reads all jobs by the primary key if it may join them.
CROSS JOIN LATERAL (
    SELECT * FROM headgate.job WHERE follows = led.leader ORDER BY follows, id LIMIT :count
) AS job

-- part: first_followers [sqlite]
CROSS JOIN job ON job.rowid IN (SELECT rowid FROM job WHERE follows = led.leader ORDER BY follows, id LIMIT :count)

-- name: attempts
-- Return the attempts of a job that did not succeed, oldest first.
SELECT {record:attempt} FROM headgate.attempt WHERE job = :id::job_id ORDER BY id

-- name: waiting
-- Count waiting jobs by queue, task and what they wait for, and when the first of them is due, among a maximum of jobs.
SELECT queue, task, view, count(*) AS jobs, min(run_at) AS due_at
FROM (
    SELECT
        job.queue, job.task,
        CASE
            WHEN job.delayed AND job.run_at > :now THEN 'scheduled'
            WHEN bucket.opens_at > :limit_now THEN 'throttled'
            ELSE 'ready'
        END AS view,
        job.run_at
    FROM (
        SELECT queue, task, delayed, run_at, lane FROM headgate.job WHERE waiting AND NOT delayed
        UNION ALL
        SELECT queue, task, delayed, run_at, lane FROM headgate.job WHERE waiting AND delayed
        LIMIT :most
    ) AS job
    LEFT JOIN headgate.lane ON lane.id = job.lane
    LEFT JOIN headgate.bucket ON bucket.id = lane.behind
    UNION ALL
    SELECT queue, task, 'blocked', NULL
    FROM (SELECT queue, task FROM headgate.job WHERE blocked LIMIT :most) AS blocked
) AS each
GROUP BY queue, task, view
ORDER BY queue, task, view

-- part: waiting_lines [postgres]
-- Jobs by lane, with arrivals that have not been merged into the lanes yet.
SELECT queue, behind, waiting FROM headgate.lane
UNION ALL
SELECT arrival.queue, lane.behind, arrival.jobs
FROM headgate.arrival LEFT JOIN headgate.lane ON lane.id = arrival.lane

-- part: waiting_lines [sqlite]
SELECT queue, behind, waiting FROM lane WHERE waiting > 0

-- part: sleeping_lanes [postgres]
-- Lanes in which jobs may wait for their time. For lanes without buckets, this is not stored.
SELECT id, queue, behind FROM headgate.lane WHERE wakes_at IS NOT NULL OR NOT gated
UNION
SELECT arrival.lane, arrival.queue, lane.behind
FROM headgate.arrival LEFT JOIN headgate.lane ON lane.id = arrival.lane
WHERE arrival.wakes_at IS NOT NULL

-- part: sleeping_lanes [sqlite]
SELECT id, queue, behind FROM lane WHERE waiting > 0 AND wakes_at IS NOT NULL

-- part: view_of_lane
CASE WHEN behind IS NOT NULL AND behind NOT IN (SELECT id FROM opened) THEN 'throttled' ELSE 'ready' END

-- part: opened_buckets
-- Buckets that have opened are few while nodes claim: to join 200,000 lanes with their buckets takes twice as long.
opened AS MATERIALIZED (SELECT id FROM headgate.bucket WHERE opens_at <= :limit_now::bigint)

-- part: asleep
-- How many jobs of each lane wait for their time; only these are read.
asleep AS MATERIALIZED (
    SELECT queue, behind, jobs
    FROM (
        SELECT
            line.queue, line.behind,
            (
                SELECT count(*) FROM headgate.job
                WHERE lane = line.id AND waiting AND delayed AND run_at > :now::bigint
            ) AS jobs
        FROM (@sleeping_lanes) AS line
    ) AS counted
    WHERE jobs > 0
)

-- part: waiting_views
-- Waiting jobs by queue and what they wait for, from the counts of lanes; those of `asleep` are counted in their lanes, too.
SELECT queue, @view_of_lane AS view, sum(waiting) AS jobs FROM (@waiting_lines) AS line GROUP BY 1, 2
UNION ALL
SELECT queue, @view_of_lane AS view, -sum(jobs) FROM asleep GROUP BY 1, 2
UNION ALL
SELECT queue, 'scheduled', sum(jobs) FROM asleep GROUP BY queue
UNION ALL
SELECT queue, 'blocked', count(*) FROM headgate.job WHERE blocked GROUP BY queue

-- name: views
-- Count waiting jobs by queue and what they wait for.
WITH @opened_buckets, @asleep
SELECT queue, view, sum(jobs)::bigint AS jobs
FROM (@waiting_views) AS each
GROUP BY queue, view
HAVING sum(jobs) > 0
ORDER BY queue, view

-- part: jobs_by_bucket [postgres]
-- The buckets that are not open yet, with the jobs that wait behind them. They are grouped after the join: how many groups
-- there are is not known to the planner, and it would look up each bucket.
SELECT bucket.id, limit_name, key, sum(jobs)::bigint AS jobs
FROM (
    SELECT behind, waiting AS jobs FROM (@waiting_lines) AS lane
    UNION ALL
    SELECT behind, -jobs FROM asleep
) AS line
JOIN headgate.bucket ON bucket.id = line.behind
WHERE coalesce(opens_at > :limit_now::bigint, true)
GROUP BY bucket.id, limit_name, key
HAVING sum(jobs) > 0

-- part: jobs_by_bucket [sqlite]
-- Read from the buckets: to group 200,000 lanes would take as long again. Not materialized, each sum is read four times.
SELECT id, limit_name, key, jobs
FROM (
    WITH counted AS MATERIALIZED (
        SELECT
            bucket.id, limit_name, key,
            (SELECT sum(waiting) FROM lane WHERE behind = bucket.id) - coalesce(jobs, 0) AS jobs
        FROM bucket
        LEFT JOIN (SELECT behind, sum(jobs) AS jobs FROM asleep WHERE behind IS NOT NULL GROUP BY behind) AS resting
            ON resting.behind = bucket.id
        WHERE opens_at > :limit_now
    )
    SELECT * FROM counted
)
WHERE jobs > 0

-- name: count_unfinished
-- Count jobs that run and wait, by queue and what they wait for, and those that wait for a limit also by limit and key, in
-- one statement: a job that starts meanwhile is counted once, and the sums agree. A row with a queue is of a queue. The
-- other rows are the :worst keys of each limit, with its jobs and keys in all, its bucket, and the buckets and costs of a
-- job that waits behind it.
WITH
@opened_buckets,
@asleep,
worst AS MATERIALIZED (
    SELECT id, limit_name, key, jobs, of_limit, keys
    FROM (
        SELECT
            id, limit_name, key, jobs, row_number() OVER of_its_limit AS place, sum(jobs) OVER of_its_limit AS of_limit,
            count(*) OVER of_its_limit AS keys
        FROM (@jobs_by_bucket) AS closed
        WINDOW of_its_limit AS (
            PARTITION BY limit_name ORDER BY jobs DESC ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING
        )
    ) AS ranked
    WHERE place <= :worst
)
SELECT
    queue, view, sum(jobs)::bigint AS jobs, NULL::text AS "limit", NULL::text AS key, NULL::bigint AS of_limit,
    NULL::bigint AS keys, NULL::text AS state, NULL::bigint AS opens_at, NULL::bigint AS closed_until, NULL::text AS buckets,
    NULL::text AS costs
FROM (
    @waiting_views
    UNION ALL
    SELECT queue, 'running', count(*) FROM headgate.job WHERE @is_running GROUP BY queue
) AS each
GROUP BY queue, view
HAVING sum(jobs) > 0
UNION ALL
SELECT
    NULL, NULL, worst.jobs, worst.limit_name, worst.key, worst.of_limit::bigint, worst.keys,
    coalesce(bucket.state, (@shared_state(bucket.limit_name))), bucket.opens_at, bucket.closed_until, job.buckets, job.costs
FROM worst
JOIN headgate.bucket ON bucket.id = worst.id
LEFT JOIN headgate.job ON job.id = (
    SELECT waits.id FROM headgate.job AS waits
    WHERE waits.lane = (SELECT lane.id FROM headgate.lane WHERE behind = worst.id LIMIT 1) AND waits.waiting AND NOT waits.delayed
    ORDER BY waits.rank, waits.id
    LIMIT 1
)

-- name: counts
-- Count jobs by queue and state. Waiting jobs are counted by their lanes, blocked and running ones one by one, and so
-- are final ones, unless they are left out.
SELECT
    queue, {greatest}(0, sum(waiting))::bigint AS waiting, sum(running)::bigint AS running, sum(succeeded)::bigint AS succeeded,
    sum(failed)::bigint AS failed, sum(cancelled)::bigint AS cancelled, sum(skipped)::bigint AS skipped
FROM (
    SELECT queue, sum(waiting) AS waiting, 0 AS running, 0 AS succeeded, 0 AS failed, 0 AS cancelled, 0 AS skipped
    FROM (@lane_counts) AS line GROUP BY queue
    UNION ALL
    SELECT queue, count(*), 0, 0, 0, 0, 0 FROM headgate.job WHERE blocked GROUP BY queue
    UNION ALL
    SELECT queue, 0, count(*), 0, 0, 0, 0 FROM headgate.job WHERE @is_running GROUP BY queue
    UNION ALL
    SELECT
        queue, 0, 0, CASE WHEN state = 'succeeded' THEN jobs ELSE 0 END, CASE WHEN state = 'failed' THEN jobs ELSE 0 END,
        CASE WHEN state = 'cancelled' THEN jobs ELSE 0 END, CASE WHEN state = 'skipped' THEN jobs ELSE 0 END
    FROM (
        SELECT queue, state, count(*) AS jobs FROM headgate.job
        WHERE finished_at IS NOT NULL AND :finals::boolean
        GROUP BY state, queue
    ) AS final
) AS counted
GROUP BY queue
HAVING sum(waiting + running + succeeded + failed + cancelled + skipped) > 0
ORDER BY queue

-- name: backlog [postgres]
-- Return how many jobs wait in the lanes of a queue.
SELECT greatest(0, coalesce(sum(jobs), 0))::bigint
FROM (
    SELECT waiting AS jobs
    FROM headgate.known_lane
    CROSS JOIN LATERAL (SELECT waiting FROM headgate.lane WHERE lane.id = known_lane.id {no join}) AS lane
    WHERE queue = :queue
    UNION ALL
    SELECT jobs FROM headgate.arrival WHERE queue = :queue
) AS line

-- name: backlog [sqlite]
SELECT coalesce(sum(waiting), 0) FROM lane WHERE queue = :queue

-- part: first_lanes(condition) [postgres]
CROSS JOIN LATERAL (
    SELECT buckets, waiting FROM headgate.lane WHERE $condition ORDER BY group_id, lane.place, since, id LIMIT :most
) AS lane

-- part: first_lanes(condition) [sqlite]
CROSS JOIN lane ON $condition

-- part: first_arrivals [postgres]
SELECT queue, buckets, jobs FROM headgate.arrival ORDER BY id LIMIT :most

-- part: first_arrivals [sqlite]
SELECT '' AS queue, '[]' AS buckets, 0 AS jobs WHERE false

-- name: lanes_in_turn
-- Return the first lanes of a queue in each place where a lane with jobs may be, and how many jobs wait in them: in line,
-- in the groups in line, behind the buckets that open first, and arrivals that are not merged yet. Lanes that are empty or
-- asleep are in none of them. A row `unread` says that there may be more groups, buckets or arrivals.
WITH closed AS MATERIALIZED (
    SELECT id FROM headgate.bucket WHERE opens_at IS NOT NULL ORDER BY opens_at LIMIT :most
),
line AS MATERIALIZED (
    SELECT id FROM headgate.turn_group WHERE queue = :queue AND in_line ORDER BY virtual_time, id LIMIT :most
),
arrived AS MATERIALIZED (@first_arrivals)
SELECT * FROM (
    SELECT 'line' AS part, CAST(buckets AS text) AS buckets, waiting AS jobs FROM headgate.lane
    WHERE queue = :queue AND gated AND behind IS NULL AND since IS NOT NULL AND group_id IS NULL
    ORDER BY lane.place, since, id
    LIMIT :most
) AS in_line
UNION ALL
SELECT * FROM (
    SELECT 'group', CAST(lane.buckets AS text), lane.waiting
    FROM line @first_lanes(group_id = line.id AND behind IS NULL AND since IS NOT NULL)
    LIMIT :most
) AS in_group
UNION ALL
SELECT * FROM (
    SELECT 'bucket', CAST(lane.buckets AS text), lane.waiting
    FROM closed @first_lanes(behind = closed.id AND queue = :queue)
    LIMIT :most
) AS behind
UNION ALL
SELECT 'arrived', buckets, jobs FROM arrived WHERE queue = :queue
UNION ALL
SELECT 'unread', '[]', 0
WHERE :most IN ((SELECT count(*) FROM closed), (SELECT count(*) FROM line), (SELECT count(*) FROM arrived))

-- name: paused_queues
-- Return the paused queues, and since when.
SELECT queue AS name, paused_at AS number FROM headgate.paused_queue ORDER BY queue

-- part: lanes_with_jobs [postgres]
SELECT id, queue, gated, since, behind, wakes_at, opened_at FROM headgate.lane
UNION ALL
SELECT lane, queue, buckets <> '[]', min(since) FILTER (WHERE is_ready), NULL, min(wakes_at), NULL
FROM headgate.arrival
WHERE NOT EXISTS (SELECT 1 FROM headgate.lane WHERE lane.id = arrival.lane)
GROUP BY lane, queue, buckets

-- part: lanes_with_jobs [sqlite]
SELECT id, queue, gated, since, behind, wakes_at, opened_at FROM lane WHERE waiting > 0

-- part: may_be_late [postgres]
-- Whether a lane may have jobs that waited for their time. For lanes without buckets, that is not stored.
(known.wakes_at IS NOT NULL OR NOT known.gated OR known.id IN (SELECT lane FROM headgate.arrival WHERE wakes_at IS NOT NULL))

-- part: may_be_late [sqlite]
known.wakes_at <= :now

-- part: has_jobs [postgres]
coalesce(fresh_priority, late_priority) IS NOT NULL

-- part: has_jobs [sqlite]
true

-- part: first_of_lane [postgres]
LEFT JOIN LATERAL (
    SELECT rank, run_at, priority, aging FROM headgate.job
    WHERE lane = known.id AND waiting AND NOT delayed
    ORDER BY rank, id
    LIMIT 1
) AS fresh ON true

-- part: first_of_lane [sqlite]
LEFT JOIN job AS fresh ON fresh.rowid = (
    SELECT rowid FROM job WHERE job.lane = known.id AND waiting AND NOT delayed ORDER BY rank, rowid LIMIT 1
)

-- part: has_arrivals(lane) [postgres]
EXISTS (SELECT 1 FROM headgate.arrival WHERE arrival.lane = $lane AND is_ready)

-- part: has_arrivals(lane) [sqlite]
false

-- name: queues
-- Return the queues that are paused or have waiting jobs: since when the oldest job is ready, and since when one lacks
-- only a slot. In each lane, the first job is read, and the first of each priority below its own. With aging, priorities
-- are mixed: a job that is older than the first one has a rank between the rank and the time of that one, and at most
-- 1,000 such jobs are read. So a lane of a million jobs costs as much as one of ten, or of 1,000, and a lane without
-- priorities costs one lookup.
WITH
topmost AS MATERIALIZED (
    SELECT
        known.*, fresh.rank AS fresh_rank, fresh.run_at AS fresh_at, fresh.priority AS fresh_priority,
        fresh.aging AS fresh_aging,
        (
            SELECT priority FROM headgate.job
            WHERE @may_be_late AND lane = known.id AND waiting AND delayed
            ORDER BY priority DESC
            LIMIT 1
        ) AS late_priority
    FROM (@lanes_with_jobs) AS known @first_of_lane
),
line AS (
    SELECT
        id, queue, gated, since, behind, wakes_at, opened_at,
        CASE
            WHEN fresh_priority = 0 AND late_priority IS NULL THEN fresh_at
            ELSE (
                SELECT min(at)
                FROM (
                    SELECT fresh_at AS at
                    UNION ALL
                    SELECT (
                        SELECT run_at FROM headgate.job
                        WHERE lane = topmost.id AND waiting AND NOT delayed
                            AND rank >= 260000000000000000 - (level.priority + 1) * @no_aging
                        ORDER BY rank, @place
                        LIMIT 1
                    )
                    FROM @levels
                    WHERE level.priority < fresh_priority
                    UNION ALL
                    SELECT run_at
                    FROM (
                        SELECT run_at FROM headgate.job
                        WHERE fresh_aging IS NOT NULL AND lane = topmost.id AND waiting AND NOT delayed
                            AND rank > fresh_rank AND rank < fresh_at
                        ORDER BY rank, @place
                        LIMIT 1000
                    ) AS early
                    UNION ALL
                    SELECT (
                        SELECT run_at FROM headgate.job
                        WHERE lane = topmost.id AND waiting AND delayed AND priority = level.priority AND run_at <= :now
                        ORDER BY run_at
                        LIMIT 1
                    )
                    FROM @levels
                    WHERE level.priority <= late_priority
                ) AS first
            )
        END AS run_at
    FROM topmost
    WHERE @has_jobs
),
opened AS MATERIALIZED (SELECT id, opens_at FROM headgate.bucket WHERE opens_at <= :limit_now::bigint),
counted AS MATERIALIZED (
    SELECT
        line.queue,
        min(run_at) AS oldest_at,
        min(
            CASE
                WHEN run_at IS NULL THEN NULL
                WHEN NOT gated THEN run_at
                WHEN since IS NULL THEN CASE WHEN wakes_at IS NULL OR @has_arrivals(line.id) THEN run_at ELSE wakes_at END
                -- A lane gets a new place in line with each turn. Its oldest job has lacked a slot for longer.
                WHEN behind IS NULL THEN {least}(
                    :now::bigint - (:limit_now::bigint - since),
                    {greatest}(run_at, coalesce(:now::bigint - (:limit_now::bigint - opened_at), run_at))
                )
                ELSE :now::bigint - (:limit_now::bigint - opens_at)
            END
        ) AS ready_at
    FROM line LEFT JOIN opened ON opened.id = line.behind
    GROUP BY line.queue
),
named AS (
    SELECT queue FROM counted
    UNION
    SELECT queue FROM headgate.job WHERE blocked
    UNION
    SELECT queue FROM headgate.paused_queue
)
SELECT
    named.queue, paused_at, oldest_at, CASE WHEN paused_at IS NULL AND oldest_at IS NOT NULL THEN ready_at END AS ready_at
FROM named
LEFT JOIN headgate.paused_queue ON paused_queue.queue = named.queue
LEFT JOIN counted ON counted.queue = named.queue
ORDER BY named.queue

-- part: is_served
queue {any:queues text} AND queue NOT IN (SELECT queue FROM headgate.paused_queue)

-- name: is_work_left
-- Whether a job of these queues is running, or one of these tasks is left to run in those of them that are not paused;
-- with :ready_only, one that could start now, or is blocked while followers of final leaders are still to be released. It
-- is one statement, so that a job that starts or ends meanwhile is counted once.
WITH
@opened_buckets,
line AS NOT MATERIALIZED (
    SELECT id FROM (@lanes_with_jobs) AS known
    WHERE @is_served AND NOT (:ready_only::boolean AND @view_of_lane = 'throttled')
)
SELECT
    EXISTS (SELECT 1 FROM headgate.job WHERE @is_running AND queue {any:queues text})
    -- The first job of each lane, which its index has: to find any of them, PostgreSQL may read the table.
    OR EXISTS (
        SELECT 1 FROM line @looked_up(job, lane = line.id AND waiting AND NOT delayed AND task {any:tasks text} ORDER BY rank LIMIT 1)
    )
    OR EXISTS (
        SELECT 1 FROM line @looked_up(
            job, lane = line.id AND waiting AND delayed AND task {any:tasks text} AND (NOT :ready_only::boolean OR run_at <= :now)
            ORDER BY priority LIMIT 1
        )
    )
    OR (
        (NOT :ready_only::boolean OR EXISTS (SELECT 1 FROM headgate.ended_leader))
        AND EXISTS (SELECT 1 FROM headgate.job WHERE blocked AND @is_served AND task {any:tasks text})
    )

-- part: shared_state(limit_name)
-- The state of a limit that has one for all its keys.
SELECT shared.state FROM headgate.bucket AS shared
WHERE shared.limit_name = $limit_name AND shared.key = '' AND shared.state LIKE '1:dynamic:%'

-- part: waiting_behind(id)
-- A lane may count less than 0 jobs until its arrivals are merged.
{greatest}(0, coalesce((SELECT sum(waiting) FROM headgate.lane WHERE behind = $id), 0)::bigint)

-- part: counted_bucket
id, limit_name, key, state, opens_at, closed_until,
CASE WHEN opens_at IS NULL THEN 0 ELSE @waiting_behind(bucket.id) END AS waiting

-- part: bucket_record
{array:limit_name, key} AS ref, coalesce(state, (@shared_state(bucket.limit_name))) AS state, waiting, opens_at, closed_until,
CASE WHEN opens_at IS NULL THEN 0 ELSE (SELECT count(*) FROM headgate.lane WHERE behind = bucket.id) END AS lanes

-- part: bucket_filter
-- A dynamic window stores one state for all keys, in a bucket that is not that of a key.
NOT (key = '' AND coalesce(state, '') LIKE '1:dynamic:%')
AND (:limit::text IS NULL OR limit_name = :limit)
AND (:key::text IS NULL OR key = :key)
AND (:prefix::text IS NULL OR substr(key, 1, length(:prefix)) = :prefix)

-- name: count_awaited
-- Count the buckets that lanes wait behind, up to a maximum.
SELECT count(*) FROM (SELECT 1 FROM headgate.bucket WHERE opens_at IS NOT NULL LIMIT :most) AS counted

-- name: buckets_by_waiting
-- Return buckets that lanes wait behind, most waiting first; if there are more than :most, those that open first.
SELECT @bucket_record
FROM (
    SELECT @counted_bucket
    FROM (SELECT * FROM headgate.bucket WHERE opens_at IS NOT NULL ORDER BY opens_at LIMIT :most) AS bucket
    WHERE @bucket_filter
) AS bucket
WHERE (-waiting, limit_name, key) > (-:after_waiting::bigint, :after_limit::text, :after_key::text)
ORDER BY waiting DESC, limit_name, key
LIMIT :count

-- name: buckets_by_trouble
-- Return buckets that lanes wait behind, penalized ones first, then by waiting jobs. If lanes wait behind more than
-- twice :most, the :most that open first and the :most that open last.
SELECT @bucket_record
FROM (
    SELECT @counted_bucket
    FROM (
        SELECT * FROM (SELECT * FROM headgate.bucket WHERE opens_at IS NOT NULL ORDER BY opens_at LIMIT :most) AS first_open
        UNION
        SELECT * FROM (SELECT * FROM headgate.bucket WHERE opens_at IS NOT NULL ORDER BY opens_at DESC LIMIT :most) AS last_open
    ) AS bucket
    WHERE NOT (key = '' AND coalesce(state, '') LIKE '1:dynamic:%')
) AS bucket
ORDER BY closed_until > :limit_now::bigint DESC, waiting DESC, limit_name, key
LIMIT :count

-- name: keys_by_limit
-- Return how many keys of each limit have a bucket.
SELECT limit_name AS name, count(*) AS number FROM headgate.bucket GROUP BY limit_name ORDER BY limit_name

-- name: limit_figures
-- Return how many keys of each of these limits have a bucket, counted to :most, and how many starts since then were not
-- charged to it.
SELECT
    limit_name AS "limit",
    (SELECT count(*) FROM (SELECT 1 FROM headgate.bucket WHERE bucket.limit_name = named.limit_name LIMIT :most) AS found) AS keys,
    (
        SELECT coalesce(sum(unlimited), 0)::bigint FROM headgate.limit_history
        WHERE step = :step::integer AND limit_history.limit_name = named.limit_name AND of_all AND key = ''
            AND at BETWEEN since AND :now::bigint
    ) AS unlimited
FROM {rows:named(limit_name text, since bigint)}
ORDER BY limit_name

-- name: buckets_by_name
-- Return buckets by limit and key, from one name to another; with :idle, those that no lane waits behind.
SELECT @bucket_record
FROM (
    SELECT @counted_bucket
    FROM headgate.bucket
    WHERE (limit_name, key) >= (:first_limit::text, :first_key::text) AND (limit_name, key) <= (:last_limit::text, :last_key::text)
        AND (NOT :idle::boolean OR opens_at IS NULL) AND @bucket_filter
    ORDER BY limit_name, key
    LIMIT :count
) AS bucket
ORDER BY limit_name, key

-- part: gated_lines [postgres]
SELECT buckets FROM headgate.lane WHERE gated UNION ALL SELECT buckets FROM headgate.arrival WHERE buckets <> '[]'

-- part: gated_lines [sqlite]
SELECT buckets FROM lane WHERE waiting > 0

-- name: buckets_like
-- Return buckets of waiting jobs that contain :needle, among those of :most lanes: the buckets of new keys are made by their
-- first claim.
SELECT DISTINCT buckets
FROM (SELECT buckets FROM (@gated_lines) AS line LIMIT :most) AS line
WHERE {position}(buckets, :needle) > 0
ORDER BY buckets
LIMIT :count

-- name: buckets_by_id
-- Return buckets in the order in which they are requested.
SELECT
    {array:refs.limit_name, refs.key} AS ref,
    coalesce(bucket.state, (@shared_state(refs.limit_name))) AS state,
    @waiting_behind(refs.id) AS waiting,
    bucket.opens_at,
    coalesce(bucket.closed_until, 0) AS closed_until,
    (SELECT count(*) FROM headgate.lane WHERE behind = refs.id) AS lanes
FROM {rows:refs(id text, limit_name text, key text, place)}
LEFT JOIN headgate.bucket ON bucket.id = refs.id
ORDER BY refs.place

-- part: place_in_lane
-- The position of a job in its lane, up to a maximum. Delayed jobs are counted as if all had its aging, once they are due.
SELECT CASE WHEN count(*) < 100000 THEN count(*) + 1 END
FROM (
    SELECT 1 FROM headgate.job AS other
    WHERE other.lane = job.lane AND other.waiting AND NOT other.delayed AND (other.rank, other.@place) < (job.rank, job.@place)
    UNION ALL
    SELECT 1
    FROM @levels
    CROSS JOIN headgate.job AS other
    WHERE other.lane = job.lane AND other.waiting AND other.delayed AND other.priority = level.priority
        AND (other.run_at, other.@place) < (
            {least}(job.rank + level.priority * coalesce(job.aging, @no_aging), {greatest}(job.run_at, :now::bigint) + 1), job.@place
        )
    LIMIT 100000
) AS first

-- name: queue_position
-- Return the position of a waiting job in its lane, and its costs and terms.
SELECT
    job.id,
    (@place_in_lane) AS place,
    coalesce((SELECT sum(line.waiting) FROM (@lane_counts) AS line WHERE line.id = job.lane), 0)::bigint AS waiting,
    lane.behind IS NULL AND (lane.since IS NOT NULL OR @has_arrivals(job.lane)) AS is_due,
    CASE WHEN bucket.id IS NOT NULL THEN {array:bucket.limit_name, bucket.key} END AS behind,
    job.queue, job.buckets, job.costs, job.terms, job.held, job.passed
FROM headgate.job
LEFT JOIN headgate.lane ON lane.id = job.lane
LEFT JOIN headgate.bucket ON bucket.id = lane.behind
WHERE job.id = :id::job_id AND job.state = 'waiting'

-- name: prediction_input
-- Return the position that a job would have that is added to a lane now, how many wait there, and behind which bucket.
SELECT
    (@place_in_lane) AS place,
    coalesce((SELECT sum(line.waiting) FROM (@lane_counts) AS line WHERE line.id = job.lane), 0)::bigint AS waiting,
    (
        SELECT {array:bucket.limit_name, bucket.key} FROM headgate.lane JOIN headgate.bucket ON bucket.id = lane.behind
        WHERE lane.id = job.lane
    ) AS behind
FROM (
    SELECT
        :lane::text AS lane, :now::bigint - :priority::bigint * coalesce(:aging::bigint, @no_aging) AS rank,
        :aging::bigint AS aging, :now::bigint AS run_at, 9223372036854775807 AS @place
) AS job

-- name: starts
-- Return the newest starts that were charged to a limit in that time, newest first: those of attempts that did not
-- succeed, and the last starts of jobs that are running or have succeeded.
SELECT buckets, coalesce(settled, costs) AS costs, charged_at
FROM (
    SELECT buckets, costs, charged_at, uncharged, settled FROM headgate.job
    WHERE state IN ('running', 'succeeded') AND charged_at BETWEEN :since AND :until AND {position}(buckets, :needle) > 0
    UNION ALL
    SELECT job.buckets, job.costs, attempt.charged_at, attempt.uncharged, attempt.settled
    FROM headgate.attempt JOIN headgate.job ON job.id = attempt.job
    WHERE attempt.charged_at BETWEEN :since AND :until AND {position}(job.buckets, :needle) > 0
) AS charged
WHERE uncharged = 0 OR EXISTS (
    SELECT 1 FROM {buckets:charged.buckets} WHERE ref.limit_name = :limit AND (uncharged >> ref.place::integer) & 1 = 0
)
ORDER BY charged_at DESC, buckets, coalesce(settled, costs)
LIMIT :count OFFSET :skip

-- part: uses_others(buckets)
-- Whether one of these buckets is on a limit that is not in :limits.
EXISTS (SELECT 1 FROM {buckets:$buckets} WHERE NOT ref.limit_name {any:limits text})

-- part: job_uses_others [postgres]
@uses_others(job.buckets)

-- part: job_uses_others [sqlite]
-- Lanes have the buckets of all jobs that wait in them.
(
    (blocked AND @uses_others(job.buckets))
    OR waiting AND lane IN (SELECT id FROM lane WHERE waiting > 0 AND @uses_others(lane.buckets))
)

-- part: gated_job
-- Waiting jobs with their buckets, costs and terms.
SELECT id, task, queue, CAST(payload AS text) AS payload, headers, buckets, costs, terms, limit_set, origin
FROM headgate.job

-- name: gated_jobs
-- Return waiting jobs of these tasks that carry other limit sets than these, by id; with :limits, only those that use a
-- limit that is not in it.
@gated_job
WHERE id > :after::job_id AND (waiting OR blocked) AND task {any:tasks text} AND NOT limit_set {any:limit_sets text}
    AND (:limits::text[] IS NULL OR @job_uses_others)
ORDER BY id
LIMIT :count

-- name: failed_holders
-- Return failed jobs of these tasks that hold permits and carry other limit sets than these, by id.
@gated_job
WHERE held <> 0 AND id > :after::job_id AND state = 'failed' AND {no index}task {any:tasks text} AND NOT limit_set {any:limit_sets text}
ORDER BY id
LIMIT :count

-- name: gated_jobs_by_id
-- Return those of these jobs that are waiting and of these tasks, by id. One that was tried before has its last node.
@gated_job
WHERE id {any:ids job_id} AND finished_at IS NULL AND (waiting OR node IS NULL) AND {no index}task {any:tasks text}
ORDER BY id

-- part: gated_lanes [postgres]
SELECT id, limits FROM headgate.lane WHERE gated AND (since IS NOT NULL OR wakes_at IS NOT NULL)

-- part: gated_lanes [sqlite]
SELECT id, buckets AS limits FROM lane WHERE waiting > 0

-- part: once [postgres]
-- Lanes differ little in their buckets without the keys, however many lanes there are.
DISTINCT

-- part: once [sqlite]

-- name: other_limits_are_waited_for
-- Whether jobs wait for a limit that is not in :limits, read from their lanes.
SELECT EXISTS (SELECT 1 FROM (SELECT @once limits FROM (@gated_lanes) AS gated) AS lane WHERE @uses_others(lane.limits))
    OR EXISTS (SELECT 1 FROM headgate.job WHERE blocked AND @uses_others(job.buckets))

-- name: jobs_of_other_limits
-- Return the first waiting jobs of lanes that use a limit that is not in :limits, without what they are called with.
SELECT id, task, queue, '' AS payload, NULL AS headers, buckets, costs, terms, limit_set, NULL AS origin
FROM headgate.job
WHERE id IN (
    SELECT coalesce(
        (SELECT id FROM headgate.job WHERE lane = other.id AND waiting AND NOT delayed LIMIT 1),
        (SELECT id FROM headgate.job WHERE lane = other.id AND waiting AND delayed LIMIT 1)
    )
    FROM (SELECT id FROM (@gated_lanes) AS lane WHERE @uses_others(lane.limits) LIMIT 100) AS other
)

-- name: blockers [postgres]
-- Return transactions that have been open for long and keep dead rows from being removed, and connections for which
-- others wait. The server may hide facts about the sessions of other users. A prepared transaction has pid 0.
WITH lock AS MATERIALIZED (SELECT * FROM pg_locks), session AS (
    SELECT
        pid, xact_start, query_start, wait_event_type, backend_xid AS xid,
        backend_type = 'client backend' AND (backend_xid IS NOT NULL OR backend_xmin IS NOT NULL) AS keeps_rows,
        concat(coalesce(nullif(application_name, ''), nullif(backend_type, 'client backend'), 'unnamed program'),
            ' (' || usename || ')') AS name,
        CASE WHEN wait_event = 'SyncRep' THEN 'waiting for a synchronous standby'
            ELSE coalesce(state, 'doing what this role may not see') END AS doing,
        CASE WHEN state IS NOT NULL THEN nullif(left(regexp_replace(query, '\s+', ' ', 'g'), 120), '') END AS statement
    FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
    UNION ALL
    SELECT 0, prepared, NULL, NULL, transaction, true, format('prepared transaction %L (%s)', gid, owner),
        'until COMMIT PREPARED or ROLLBACK PREPARED', NULL
    FROM pg_prepared_xacts WHERE database = current_database()
)
SELECT 'long transaction' AS kind, pid, (extract(epoch FROM xact_start) * 1000000)::bigint AS since,
    format('%s prevents the removal of dead rows, %s', name, doing) AS what, statement
FROM session
WHERE keeps_rows AND wait_event_type IS DISTINCT FROM 'Lock' AND xact_start < clock_timestamp() - interval '5 seconds'
UNION ALL
SELECT 'blocks', blocker.pid, (extract(epoch FROM min(waiter.query_start)) * 1000000)::bigint,
    format('%s keeps %s waiting, %s', blocker.name, count(DISTINCT waiter.pid), blocker.doing), blocker.statement
FROM session AS waiter CROSS JOIN LATERAL unnest(pg_blocking_pids(waiter.pid)) AS blocking (pid)
-- The server says 0 for any prepared transaction; the lock that is waited for says which.
JOIN session AS blocker ON blocker.pid = blocking.pid AND (blocker.pid > 0 OR EXISTS (
    SELECT FROM lock AS own JOIN lock AS held USING (virtualtransaction), lock AS wanted
    WHERE own.transactionid = blocker.xid AND own.pid IS NULL AND wanted.pid = waiter.pid AND NOT wanted.granted
        AND (held.locktype, held.relation, held.transactionid, held.objid)
        IS NOT DISTINCT FROM (wanted.locktype, wanted.relation, wanted.transactionid, wanted.objid)))
WHERE waiter.wait_event_type = 'Lock' AND waiter.query_start < clock_timestamp() - interval '1 second'
GROUP BY blocker.pid, blocker.name, blocker.doing, blocker.statement
ORDER BY since
