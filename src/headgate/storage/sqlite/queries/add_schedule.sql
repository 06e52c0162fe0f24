-- Store a new schedule; jobs of an earlier one of its name may not be final yet.
INSERT INTO schedule (
    name, task, call, rules, started_at, next_at, last_at, runs, open, last_job, paused_at, revision,
    is_declared, formerly, skipped, skipped_at
)
VALUES (
    :name, :task, :call, :rules, :started_at, :next_at, :last_at, :runs,
    (SELECT count(*) FROM job WHERE schedule = :name AND finished_at IS NULL), :last_job, :paused_at, 1,
    :is_declared, :formerly, :skipped, :skipped_at
)
