-- Forget batches that were final before then, of which no job is stored any more: it looks at all that are so old.
DELETE FROM headgate.batch
WHERE id IN (
    SELECT id FROM headgate.batch
    WHERE finished_at < :before AND NOT EXISTS (SELECT 1 FROM headgate.job WHERE job.batch IS NOT NULL AND job.batch = batch.id)
    LIMIT :count
    FOR UPDATE SKIP LOCKED
)
