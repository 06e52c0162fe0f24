-- How far these batches are, locked, so that it stays so.
SELECT id, pending, failed, cancelled FROM headgate.batch WHERE id = ANY(:ids::text[]) ORDER BY id FOR UPDATE
