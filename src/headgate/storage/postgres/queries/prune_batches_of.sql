-- Forget these batches, where they were final before then and no job of them is stored any more.
DELETE FROM headgate.batch
WHERE id IN (
    SELECT id FROM headgate.batch
    WHERE id = ANY(:ids::text[]) AND finished_at < :before
        AND NOT EXISTS (SELECT 1 FROM headgate.job WHERE job.batch IS NOT NULL AND job.batch = batch.id)
    FOR UPDATE SKIP LOCKED
)
