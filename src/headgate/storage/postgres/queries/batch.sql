-- A batch as people look at it.
SELECT id, total, pending, succeeded, failed, cancelled, enqueued_at, finished_at FROM headgate.batch WHERE id = :id
