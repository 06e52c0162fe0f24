-- Those of these jobs that still wait, or are blocked, locked; but for those that somebody else has locked, which are looked
-- at again another time.
SELECT id, lane, held, waiting, is_followed, batch
FROM headgate.job
WHERE id = ANY(:ids::text[]) AND finished_at IS NULL AND (waiting OR node IS NULL)
ORDER BY id
FOR UPDATE SKIP LOCKED
