-- Forget these batches, where they were final before then and no job of them is stored any more.
DELETE FROM batch
WHERE id IN (SELECT value FROM json_each(:ids)) AND +finished_at < :before
    AND NOT EXISTS (SELECT 1 FROM job WHERE job.batch IS NOT NULL AND job.batch = batch.id)
