-- Forget empty lanes that no running job can come back to.
DELETE FROM lane
WHERE id IN (
    SELECT id FROM lane
    WHERE gated AND waiting = 0 AND id NOT IN (SELECT lane FROM job WHERE state = 'running')
    LIMIT :count
)
