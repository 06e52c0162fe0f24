-- The lanes of jobs that wait again become due, or sleep until their earliest; :seqs are the jobs.
UPDATE lane
SET waiting = waiting + back.jobs,
    since = CASE WHEN since IS NULL AND back.ready > 0 THEN :limit_now ELSE since END,
    wakes_at = CASE WHEN wakes_at IS NULL OR back.earliest < wakes_at THEN coalesce(back.earliest, wakes_at) ELSE wakes_at END
FROM (
    SELECT
        lane,
        count(*) AS jobs,
        sum(NOT delayed) AS ready,
        min(CASE WHEN delayed THEN run_at END) AS earliest
    FROM job
    WHERE seq IN (SELECT value FROM json_each(:seqs)) AND state = 'waiting'
    GROUP BY lane
) AS back
WHERE lane.id = back.lane
