-- Forget a schedule and what is noted of it; its jobs stay.
WITH gone AS (DELETE FROM headgate.schedule_note WHERE schedule = :name)
DELETE FROM headgate.schedule WHERE name = :name
