-- Count what is noted of these schedules, whose rows are locked.
WITH gone AS (
    DELETE FROM headgate.schedule_note WHERE schedule = ANY(:names::text[]) RETURNING schedule, runs, open
), sums AS (
    SELECT schedule, sum(runs) AS runs, sum(open) AS open FROM gone GROUP BY schedule
)
UPDATE headgate.schedule
SET runs = schedule.runs + sums.runs, open = schedule.open + sums.open
FROM sums
WHERE name = sums.schedule
