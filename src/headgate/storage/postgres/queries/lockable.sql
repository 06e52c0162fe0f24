-- Those of these jobs that nobody else has locked.
SELECT id FROM headgate.job WHERE id = ANY(:ids::text[]) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
