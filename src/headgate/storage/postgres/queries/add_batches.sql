-- Store new batches with what of their jobs is final from the start; those that are stored already stay as they are.
INSERT INTO headgate.batch (id, total, pending, succeeded, failed, cancelled, enqueued_at, finished_at)
SELECT
    id, total, total - succeeded - failed - cancelled, succeeded, failed, cancelled, enqueued_at,
    CASE WHEN total = succeeded + failed + cancelled THEN :now::bigint END
FROM unnest(
    :ids::text[], :totals::integer[], :enqueued_at::bigint[], :succeeded::integer[], :failed::integer[], :cancelled::integer[]
) AS new (id, total, enqueued_at, succeeded, failed, cancelled)
ORDER BY id
ON CONFLICT (id) DO NOTHING
