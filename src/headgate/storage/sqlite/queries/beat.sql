-- A node renews its lease; nothing is updated if it has been declared dead.
UPDATE node SET beat = beat + 1, beat_at = :now, lingering = :lingering WHERE id = :id
