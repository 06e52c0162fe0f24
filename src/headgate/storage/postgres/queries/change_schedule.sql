-- Declare a schedule again; its count is taken from the outside only if it begins anew.
UPDATE headgate.schedule
SET task = :task, call = :call, rules = :rules, started_at = :started_at, next_at = :next_at, last_at = :last_at,
    runs = CASE WHEN :anew::boolean THEN :runs ELSE runs END, last_job = :last_job, paused_at = :paused_at,
    revision = revision + 1, is_declared = :is_declared, formerly = :formerly, skipped = :skipped, skipped_at = :skipped_at
WHERE name = :name AND revision = :replaces
