-- A page of the batches that are not final, the newest first.
SELECT json_group_array(json_array(id, total, pending, succeeded, failed, cancelled, enqueued_at, finished_at))
FROM (
    SELECT * FROM batch
    WHERE pending > 0 AND id < coalesce(:cursor, '~')
    ORDER BY id DESC
    LIMIT :count
)
