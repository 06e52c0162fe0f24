-- Those of these jobs that still wait, locked.
SELECT id, lane, held FROM headgate.job WHERE id = ANY(:ids::text[]) AND state = 'waiting' ORDER BY id FOR UPDATE
