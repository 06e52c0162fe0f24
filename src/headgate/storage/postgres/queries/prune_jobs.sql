-- Forget final jobs.
DELETE FROM headgate.job WHERE id = ANY(:ids::text[]) AND finished_at IS NOT NULL
