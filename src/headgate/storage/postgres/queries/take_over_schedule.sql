-- Put a schedule in the place of another one, whose row is locked: its count with what is noted is kept, and the jobs of
-- the new name that are not final are counted as of the same moment.
WITH before AS (
    DELETE FROM headgate.schedule WHERE name = :was RETURNING runs
), gone AS (
    DELETE FROM headgate.schedule_note WHERE schedule IN (:was, :name) RETURNING schedule, runs
)
UPDATE headgate.schedule
SET runs = (SELECT runs FROM before) + coalesce((SELECT sum(runs) FROM gone WHERE schedule = :was), 0),
    open = (SELECT count(*) FROM headgate.job WHERE schedule = :name AND finished_at IS NULL)
WHERE name = :name
