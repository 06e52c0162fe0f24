-- A node renews its lease; nothing is updated if it has been declared dead.
WITH @unsynced
UPDATE headgate.node SET beat = beat + 1, beat_at = :now, lingering = :lingering::text[] FROM unsynced
WHERE id = :id AND gone IS NULL
