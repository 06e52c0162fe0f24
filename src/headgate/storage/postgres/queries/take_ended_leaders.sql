-- Some leaders of whose followers not all have been released or cancelled, and that nobody else works on. They are noted again
-- if that is still so.
DELETE FROM headgate.ended_leader
WHERE id IN (SELECT id FROM headgate.ended_leader ORDER BY id LIMIT :count FOR UPDATE SKIP LOCKED)
RETURNING id, ended_as, after
