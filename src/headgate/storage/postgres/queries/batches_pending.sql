-- A page of the batches that are not final, the newest first.
SELECT id, total, pending, succeeded, failed, cancelled, enqueued_at, finished_at
FROM headgate.batch
WHERE pending > 0 AND id < coalesce(:cursor::text, '~')
ORDER BY id DESC
LIMIT :count::integer
