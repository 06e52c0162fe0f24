-- Store a new schedule. Jobs of an earlier one of its name may not be final yet: they are counted, and what was noted of
-- the others is forgotten, as of the same moment.
WITH gone AS (
    DELETE FROM headgate.schedule_note
    WHERE schedule = :name AND NOT EXISTS (SELECT 1 FROM headgate.schedule WHERE name = :name)
)
INSERT INTO headgate.schedule (
    name, task, call, rules, started_at, next_at, last_at, runs, open, last_job, paused_at, revision,
    is_declared, formerly, skipped, skipped_at
)
SELECT
    :name, :task, :call, :rules, :started_at, :next_at, :last_at, :runs,
    (SELECT count(*) FROM headgate.job WHERE schedule = :name AND finished_at IS NULL), :last_job, :paused_at, 1,
    :is_declared, :formerly, :skipped, :skipped_at
ON CONFLICT (name) DO NOTHING
