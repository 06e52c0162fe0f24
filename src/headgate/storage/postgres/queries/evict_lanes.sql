-- Forget empty lanes. Whoever comes to one again brings all that it takes to make it anew.
DELETE FROM headgate.lane
WHERE id IN (
    SELECT id FROM headgate.lane
    WHERE gated AND since IS NULL AND wakes_at IS NULL AND waiting = 0
    LIMIT :count
    FOR UPDATE SKIP LOCKED
)
