-- A page of batches, the newest first.
SELECT json_group_array(json_array(id, total, pending, succeeded, failed, cancelled, enqueued_at, finished_at))
FROM (
    SELECT * FROM batch
    WHERE id < coalesce(:cursor, '~')
    ORDER BY id DESC
    LIMIT :count
)
