-- The lanes of new jobs become due, a microsecond apart so that they keep their order, or sleep until their earliest delayed job.
-- :lanes is an array of [id, queue, draws, variant, jobs, ready jobs, earliest run_at of the delayed ones].
UPDATE lane
SET waiting = waiting + new.jobs,
    since = CASE WHEN since IS NULL AND new.ready > 0 THEN :limit_now + new.place ELSE since END,
    wakes_at = CASE
        WHEN wakes_at IS NULL OR new.earliest < wakes_at THEN coalesce(new.earliest, wakes_at) ELSE wakes_at
    END
FROM (
    SELECT
        key AS place,
        json_extract(value, '$[0]') AS id,
        json_extract(value, '$[4]') AS jobs,
        json_extract(value, '$[5]') AS ready,
        json_extract(value, '$[6]') AS earliest
    FROM json_each(:lanes)
) AS new
WHERE lane.id = new.id
