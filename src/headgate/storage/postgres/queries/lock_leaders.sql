-- How these jobs ended that others are to follow, locked, so that it stays so.
SELECT id, state FROM headgate.job WHERE id = ANY(:ids::text[]) ORDER BY id FOR UPDATE
