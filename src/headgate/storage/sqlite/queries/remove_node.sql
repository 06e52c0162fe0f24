-- A node is gone, unless it has sent a heartbeat since :beat.
DELETE FROM node WHERE id = :id AND (:beat IS NULL OR beat = :beat)
