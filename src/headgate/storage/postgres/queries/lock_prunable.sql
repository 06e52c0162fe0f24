-- Those of these jobs that are as they were, and that nobody else prunes, locked.
SELECT id, held FROM headgate.job WHERE id = ANY(:ids::text[]) AND finished_at < :before FOR UPDATE SKIP LOCKED
