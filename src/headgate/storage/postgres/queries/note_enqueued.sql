-- Note that this transaction, which may be somebody else's and be undone, enqueues jobs.
INSERT INTO headgate.history_note (queue, task, at, enqueued, failed, cancelled)
SELECT queue, task, :now::bigint, count(*), 0, 0
FROM unnest(:queues::text[], :tasks::text[]) AS enlisted (queue, task)
GROUP BY queue, task
