-- A page of batches, the newest first.
SELECT id, total, pending, succeeded, failed, cancelled, enqueued_at, finished_at
FROM headgate.batch
WHERE id < coalesce(:cursor::text, '~')
ORDER BY id DESC
LIMIT :count::integer
