-- Note jobs that have become final and of which no attempt tells.
INSERT INTO headgate.history_note (queue, task, at, enqueued, failed, cancelled)
SELECT queue, task, :now::bigint, 0, count(*) FILTER (WHERE state = 'failed'), count(*) FILTER (WHERE state = 'cancelled')
FROM headgate.job
WHERE id = ANY (:ids::text[])
GROUP BY queue, task
