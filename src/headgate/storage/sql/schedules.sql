-- Schedules. With several writers, the jobs of a schedule leave notes of their ends, and the notes are merged when the
-- schedule is written. With one writer, a trigger counts them at once.

-- part: schedule_columns [postgres]
name, call, rules,
json_build_array(
    started_at, next_at, last_at,
    runs + coalesce((SELECT sum(note.runs) FROM headgate.schedule_note AS note WHERE note.schedule = name), 0),
    open + coalesce((SELECT sum(note.open) FROM headgate.schedule_note AS note WHERE note.schedule = name), 0)
)::text AS course,
last_job, paused_at, revision, is_declared, formerly, skipped, skipped_at, skips

-- part: schedule_columns [sqlite]
name, call, rules, json_array(started_at, next_at, last_at, runs, open) AS course, last_job, paused_at, revision,
is_declared, formerly, skipped, skipped_at, skips

-- name: schedule_named
SELECT @schedule_columns FROM headgate.schedule WHERE name = :name

-- name: schedules
-- Return a page of schedules by name: all, or those that had that name before.
SELECT @schedule_columns
FROM headgate.schedule
WHERE name > :after AND (:formerly::text IS NULL OR formerly = :formerly)
ORDER BY name
LIMIT :count

-- part: served
task {any:tasks text} AND NOT (name {any:unable text})

-- name: due_schedules
-- Return schedules that were due before then, the longest overdue first: those of these tasks that can be fired, or the
-- others.
SELECT @schedule_columns
FROM headgate.schedule
WHERE next_at IS NOT NULL AND paused_at IS NULL AND next_at < :before AND (@served) = :are_served::boolean
ORDER BY next_at, name
LIMIT :count

-- name: next_schedule
-- Return when the next schedule of these tasks becomes due.
SELECT next_at
FROM headgate.schedule
WHERE next_at IS NOT NULL AND paused_at IS NULL AND next_at > :now AND @served
ORDER BY next_at
LIMIT 1

-- name: schedules_ahead
-- Return a page of the schedules of these tasks, by name, that were declared or had an occurrence after then.
SELECT @schedule_columns
FROM headgate.schedule
WHERE name > :beyond AND (started_at > :after OR last_at > :after) AND @served
ORDER BY name
LIMIT :count

-- part: open_of_schedule
(SELECT count(*) FROM headgate.job WHERE schedule = :name AND batch IS NULL AND finished_at IS NULL)
    + (SELECT count(*) FROM headgate.batch WHERE schedule = :name AND finished_at IS NULL)

-- part: insert_schedule
INSERT INTO headgate.schedule (
    name, task, call, rules, started_at, next_at, last_at, runs, open, last_job, paused_at, revision,
    is_declared, formerly, skipped, skipped_at, skips
)
SELECT
    :name, :task, :call, :rules, :started_at, :next_at, :last_at, :runs,
    @open_of_schedule, :last_job::job_id, :paused_at, 1,
    :is_declared, :formerly, :skipped, :skipped_at, :skips
WHERE true
ON CONFLICT (name) DO NOTHING

-- name: add_schedule [postgres]
-- Store a new schedule. Jobs of an earlier schedule with this name may not be final yet; their notes are deleted.
WITH gone AS (
    DELETE FROM headgate.schedule_note
    WHERE schedule = :name AND NOT EXISTS (SELECT 1 FROM headgate.schedule WHERE name = :name)
)
@insert_schedule

-- name: add_schedule [sqlite]
@insert_schedule

-- name: change_schedule
-- Change a schedule that is declared again; its count is replaced only if it begins anew.
UPDATE headgate.schedule
SET task = :task, call = :call, rules = :rules, started_at = :started_at, next_at = :next_at, last_at = :last_at,
    runs = CASE WHEN :anew::boolean THEN :runs ELSE runs END, last_job = :last_job::job_id, paused_at = :paused_at,
    revision = revision + 1, is_declared = :is_declared, formerly = :formerly, skipped = :skipped, skipped_at = :skipped_at,
    skips = :skips
WHERE name = :name AND revision = :replaces

-- name: lock_leaders_if_free [postgres]
-- Lock these jobs; return those of them that another transaction has locked.
WITH free AS MATERIALIZED (
    SELECT id FROM headgate.job WHERE id {any:ids job_id} ORDER BY id FOR UPDATE SKIP LOCKED
)
SELECT id FROM headgate.job WHERE id {any:ids job_id} AND id NOT IN (SELECT id FROM free)

-- name: lock_schedules
-- Lock those of these schedules that have these revisions, except those that another transaction has locked.
SELECT schedule.name
FROM headgate.schedule
JOIN {rows:named(name text, revision bigint)} ON @by_key(schedule.name, named.name) AND named.revision = schedule.revision
ORDER BY schedule.name
{for update of schedule skip locked}

-- name: merge_schedule_notes [postgres]
-- Add the notes of these schedules to their counts.
WITH gone AS (
    DELETE FROM headgate.schedule_note WHERE schedule = ANY(:names::text[]) RETURNING schedule, runs, open
), sums AS (
    SELECT schedule, sum(runs) AS runs, sum(open) AS open FROM gone GROUP BY schedule
)
UPDATE headgate.schedule
SET runs = schedule.runs + sums.runs, open = schedule.open + sums.open
FROM sums
WHERE name = sums.schedule

-- name: advance_schedules
-- Advance schedules after their occurrences have been enqueued.
UPDATE headgate.schedule
SET next_at = fired.next_at, last_at = fired.last_at, open = open + fired.opened,
    last_job = coalesce(fired.last_job, schedule.last_job), revision = schedule.revision + 1,
    skipped = coalesce(fired.skipped, schedule.skipped), skipped_at = coalesce(fired.skipped_at, schedule.skipped_at),
    skips = schedule.skips + fired.skips
FROM {rows:fired(
    name text, next_at bigint, last_at bigint, opened bigint, last_job job_id, skipped text, skipped_at bigint,
    skips bigint
)}
WHERE @by_key(schedule.name, fired.name)

-- name: move_scheduled_jobs [postgres]
-- Move the jobs of a schedule that are not final to its new name.
UPDATE headgate.job
SET schedule = :name, origin = regexp_replace(
        origin, '"schedule":"([^"\\]|\\.)*"', '"schedule":' || replace(to_json(:name::text)::text, '\', '\\')
    )
FROM (
    SELECT id FROM headgate.job WHERE schedule = :was AND finished_at IS NULL ORDER BY id FOR UPDATE
) AS own
WHERE job.id = own.id

-- name: move_scheduled_jobs [sqlite]
UPDATE job SET schedule = :name, origin = iif(json_valid(origin), json_set(origin, '$.schedule', :name), origin)
WHERE schedule = :was AND finished_at IS NULL

-- name: move_scheduled_batches
-- Move the batches of a schedule that are not final to its new name.
UPDATE headgate.batch SET schedule = :name WHERE schedule = :was AND finished_at IS NULL

-- name: uncount_final_runs
-- Take those of these new batches that were final from the start out of the counts of their schedules.
UPDATE headgate.schedule
SET open = schedule.open - (
    SELECT count(*) FROM headgate.batch
    WHERE batch.id {any:runs job_id} AND batch.schedule = schedule.name AND finished_at IS NOT NULL
)
WHERE name {any:names text}

-- name: take_over_schedule [postgres]
-- Give a schedule the count and the jobs of the one that it replaces.
WITH gone AS (
    DELETE FROM headgate.schedule_note WHERE schedule IN (:was, :name) RETURNING schedule, runs
)
UPDATE headgate.schedule
SET runs = (SELECT runs FROM headgate.schedule WHERE name = :was)
        + coalesce((SELECT sum(runs) FROM gone WHERE schedule = :was), 0),
    open = @open_of_schedule
WHERE name = :name

-- name: take_over_schedule [sqlite]
UPDATE schedule
SET runs = (SELECT before.runs FROM schedule AS before WHERE before.name = :was),
    open = @open_of_schedule
WHERE name = :name

-- name: remove_schedule [postgres]
-- Delete a schedule; its jobs stay.
WITH gone AS (DELETE FROM headgate.schedule_note WHERE schedule = :name)
DELETE FROM headgate.schedule WHERE name = :name

-- name: remove_schedule [sqlite]
DELETE FROM schedule WHERE name = :name

-- name: share_new_schedules [postgres]
-- Taken by a transaction that stores a new schedule, until its end, so that the schedule's notes are not deleted
-- meanwhile.
SELECT pg_advisory_xact_lock_shared('headgate.schedule'::regclass::oid::integer, 0)

-- name: own_new_schedules [postgres]
-- Whether no transaction stores a new schedule now, nor can until this one ends.
SELECT pg_try_advisory_xact_lock('headgate.schedule'::regclass::oid::integer, 0)

-- name: evict_schedule_notes [postgres]
-- Delete notes of schedules that do not exist.
DELETE FROM headgate.schedule_note
WHERE id IN (
    SELECT id FROM headgate.schedule_note AS note
    WHERE NOT EXISTS (SELECT 1 FROM headgate.schedule WHERE name = note.schedule)
    LIMIT :count
    FOR UPDATE SKIP LOCKED
)
