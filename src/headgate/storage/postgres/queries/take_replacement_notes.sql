-- What replaced jobs ask for no more, which is given back in this transaction.
DELETE FROM headgate.replacement_note
WHERE id IN (SELECT id FROM headgate.replacement_note ORDER BY id LIMIT :count FOR UPDATE SKIP LOCKED)
RETURNING id, permits, lane, draws
