-- The lanes of new jobs become due, or sleep until their earliest delayed job.
-- :lanes is an array of [queue, draws, variant, jobs, ready jobs, earliest run_at of the delayed ones].
UPDATE lane
SET waiting = waiting + new.jobs,
    since = CASE WHEN since IS NULL AND new.ready > 0 THEN :limit_now ELSE since END,
    wakes_at = CASE
        WHEN wakes_at IS NULL OR new.earliest < wakes_at THEN coalesce(new.earliest, wakes_at) ELSE wakes_at
    END
FROM (
    SELECT
        json_extract(value, '$[0]') AS queue,
        json_extract(value, '$[1]') AS draws,
        json_extract(value, '$[2]') AS variant,
        json_extract(value, '$[3]') AS jobs,
        json_extract(value, '$[4]') AS ready,
        json_extract(value, '$[5]') AS earliest
    FROM json_each(:lanes)
) AS new
WHERE lane.queue = new.queue AND lane.draws = new.draws AND lane.variant = new.variant
