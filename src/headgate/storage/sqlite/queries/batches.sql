-- These batches as people look at them.
SELECT json_group_array(
    json_array(batch.id, total, pending, succeeded, failed, cancelled, enqueued_at, finished_at)
)
FROM json_each(:ids) AS wanted
JOIN batch ON batch.id = wanted.value
