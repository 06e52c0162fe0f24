-- The lanes of new jobs become due, or sleep until their earliest delayed job.
UPDATE lane
SET waiting = waiting + new.jobs,
    since = CASE WHEN since IS NULL AND new.ready > 0 THEN :limit_now ELSE since END,
    wakes_at = CASE WHEN wakes_at IS NULL OR new.earliest < wakes_at THEN coalesce(new.earliest, wakes_at) ELSE wakes_at END
FROM (
    SELECT
        json_extract(value, '$[2]') AS queue,
        json_extract(value, '$[9]') AS draws,
        count(*) AS jobs,
        sum(NOT json_extract(value, '$[5]')) AS ready,
        min(CASE WHEN json_extract(value, '$[5]') THEN json_extract(value, '$[6]') END) AS earliest
    FROM json_each(:jobs)
    GROUP BY 1, 2
) AS new
WHERE lane.queue = new.queue AND lane.draws = new.draws
