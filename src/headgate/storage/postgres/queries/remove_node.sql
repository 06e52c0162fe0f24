-- A node is gone, unless it has sent a heartbeat since :beat.
DELETE FROM headgate.node WHERE id = :id AND (:beat::bigint IS NULL OR beat = :beat)
