-- Schedules. Where several write, the jobs of a schedule note what they come to, and the notes are merged when the
-- schedule is written; where one writes, a trigger counts it at once.

-- part: schedule_columns [postgres]
name, call, rules, started_at, next_at, last_at,
    runs + coalesce((SELECT sum(note.runs) FROM headgate.schedule_note AS note WHERE note.schedule = name), 0)::bigint AS runs,
    open + coalesce((SELECT sum(note.open) FROM headgate.schedule_note AS note WHERE note.schedule = name), 0)::bigint AS open,
    last_job, paused_at, revision, is_declared, formerly, skipped, skipped_at

-- part: schedule_columns [sqlite]
name, call, rules, started_at, next_at, last_at, runs, open, last_job, paused_at, revision, is_declared, formerly, skipped,
skipped_at

-- name: schedules
-- A page of schedules by name: all, the one of that name, or those that had one before.
SELECT @schedule_columns
FROM headgate.schedule
WHERE name > :after AND (:name::text IS NULL OR name = :name) AND (:formerly::text IS NULL OR formerly = :formerly)
ORDER BY name
LIMIT :count

-- part: served
task {any:tasks text} AND NOT (name {any:unable text})

-- name: due_schedules
-- The schedules of these tasks whose next occurrence has come, the longest due first.
SELECT @schedule_columns
FROM headgate.schedule
WHERE next_at IS NOT NULL AND paused_at IS NULL AND next_at <= :now AND @served
ORDER BY next_at, name
LIMIT :count

-- name: next_schedule
-- When the first schedule of these tasks is due that is not due yet.
SELECT next_at
FROM headgate.schedule
WHERE next_at IS NOT NULL AND paused_at IS NULL AND next_at > :now AND @served
ORDER BY next_at
LIMIT 1

-- name: overdue_schedules
-- The schedules that were due before then, and are not of these tasks or among those that cannot be fired.
SELECT @schedule_columns
FROM headgate.schedule
WHERE next_at IS NOT NULL AND paused_at IS NULL AND next_at < :before AND NOT (@served)
ORDER BY next_at, name
LIMIT :count

-- part: insert_schedule
INSERT INTO headgate.schedule (
    name, task, call, rules, started_at, next_at, last_at, runs, open, last_job, paused_at, revision,
    is_declared, formerly, skipped, skipped_at
)
SELECT
    :name, :task, :call, :rules, :started_at, :next_at, :last_at, :runs,
    (SELECT count(*) FROM headgate.job WHERE schedule = :name AND finished_at IS NULL), :last_job, :paused_at, 1,
    :is_declared, :formerly, :skipped, :skipped_at
WHERE true
ON CONFLICT (name) DO NOTHING

-- name: add_schedule [postgres]
-- Store a new schedule; jobs of an earlier one of its name may not be final yet, and what is noted of it is forgotten.
WITH gone AS (
    DELETE FROM headgate.schedule_note
    WHERE schedule = :name AND NOT EXISTS (SELECT 1 FROM headgate.schedule WHERE name = :name)
)
@insert_schedule

-- name: add_schedule [sqlite]
@insert_schedule

-- name: change_schedule
-- Declare a schedule again; its count is taken from the outside only if it begins anew.
UPDATE headgate.schedule
SET task = :task, call = :call, rules = :rules, started_at = :started_at, next_at = :next_at, last_at = :last_at,
    runs = CASE WHEN :anew::boolean THEN :runs ELSE runs END, last_job = :last_job, paused_at = :paused_at,
    revision = revision + 1, is_declared = :is_declared, formerly = :formerly, skipped = :skipped, skipped_at = :skipped_at
WHERE name = :name AND revision = :replaces

-- name: lock_schedules
-- Those of these schedules that are of these revisions, locked; those that somebody else has locked are left to him.
SELECT schedule.name
FROM headgate.schedule
JOIN {rows:wanted(name text, revision bigint)} ON wanted.name = schedule.name AND wanted.revision = schedule.revision
ORDER BY schedule.name
{for update of schedule skip locked}

-- name: merge_schedule_notes [postgres]
-- Count what is noted of these schedules.
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
-- What these schedules enqueue is enqueued.
UPDATE headgate.schedule
SET next_at = fired.next_at, last_at = fired.last_at, open = open + fired.opened,
    last_job = coalesce(fired.last_job, schedule.last_job), revision = schedule.revision + 1,
    skipped = coalesce(fired.skipped, schedule.skipped), skipped_at = coalesce(fired.skipped_at, schedule.skipped_at)
FROM {rows:fired(
    name text, next_at bigint, last_at bigint, opened bigint, last_job text, skipped text, skipped_at bigint
)}
WHERE schedule.name = fired.name

-- name: move_scheduled_jobs [postgres]
-- The jobs of a schedule that are not final, under its new name.
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

-- name: take_over_schedule [postgres]
-- A schedule goes on with the count of another one, and has its jobs.
WITH gone AS (
    DELETE FROM headgate.schedule_note WHERE schedule IN (:was, :name) RETURNING schedule, runs
)
UPDATE headgate.schedule
SET runs = (SELECT runs FROM headgate.schedule WHERE name = :was)
        + coalesce((SELECT sum(runs) FROM gone WHERE schedule = :was), 0),
    open = (SELECT count(*) FROM headgate.job WHERE schedule = :name AND finished_at IS NULL)
WHERE name = :name

-- name: take_over_schedule [sqlite]
UPDATE schedule
SET runs = (SELECT before.runs FROM schedule AS before WHERE before.name = :was),
    open = (SELECT count(*) FROM job WHERE schedule = :name AND finished_at IS NULL)
WHERE name = :name

-- name: remove_schedule [postgres]
-- Forget a schedule; its jobs stay.
WITH gone AS (DELETE FROM headgate.schedule_note WHERE schedule = :name)
DELETE FROM headgate.schedule WHERE name = :name

-- name: remove_schedule [sqlite]
DELETE FROM schedule WHERE name = :name

-- name: share_new_schedules [postgres]
-- Whoever stores a new schedule, until its transaction ends: what is noted of it meanwhile is not to be forgotten.
SELECT pg_advisory_xact_lock_shared('headgate.schedule'::regclass::oid::integer, 0)

-- name: own_new_schedules [postgres]
-- Whether nobody stores a new schedule now, nor will until the transaction ends.
SELECT pg_try_advisory_xact_lock('headgate.schedule'::regclass::oid::integer, 0)

-- name: evict_schedule_notes [postgres]
-- Forget what is noted of schedules that are gone.
DELETE FROM headgate.schedule_note
WHERE id IN (
    SELECT id FROM headgate.schedule_note AS note
    WHERE NOT EXISTS (SELECT 1 FROM headgate.schedule WHERE name = note.schedule)
    LIMIT :count
    FOR UPDATE SKIP LOCKED
)
