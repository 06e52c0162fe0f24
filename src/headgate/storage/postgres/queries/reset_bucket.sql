-- A bucket is as good as new; :keep_state leaves the permits that are still held.
UPDATE headgate.bucket
SET state = CASE WHEN :keep_state THEN state END,
    idle_at = CASE WHEN :keep_state THEN idle_at ELSE 0 END,
    closed_until = 0
WHERE id = :id
