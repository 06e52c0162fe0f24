-- Store new batches; :batches is an array of [id, total, enqueued_at, succeeded, failed, cancelled], the last of the jobs
-- that are final from the start. Those that are stored already stay as they are.
INSERT INTO batch (id, total, pending, succeeded, failed, cancelled, enqueued_at, finished_at)
SELECT
    id, total, total - succeeded - failed - cancelled, succeeded, failed, cancelled, enqueued_at,
    CASE WHEN total = succeeded + failed + cancelled THEN :now END
FROM (
    SELECT
        json_extract(value, '$[0]') AS id,
        json_extract(value, '$[1]') AS total,
        json_extract(value, '$[2]') AS enqueued_at,
        json_extract(value, '$[3]') AS succeeded,
        json_extract(value, '$[4]') AS failed,
        json_extract(value, '$[5]') AS cancelled
    FROM json_each(:batches)
)
WHERE true
ON CONFLICT (id) DO NOTHING
