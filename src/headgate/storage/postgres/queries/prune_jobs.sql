-- Forget final jobs; the batches that they belonged to.
WITH gone AS (
    DELETE FROM headgate.job WHERE id = ANY(:ids::text[]) AND finished_at IS NOT NULL RETURNING batch
)
SELECT DISTINCT batch FROM gone WHERE batch IS NOT NULL
