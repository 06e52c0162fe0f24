-- Forget buckets that are as good as new and have no lane behind them.
DELETE FROM headgate.bucket
WHERE id IN (
    SELECT id FROM headgate.bucket
    WHERE opens_at IS NULL AND idle_at <= :limit_now AND closed_until <= :limit_now
    LIMIT :count
    FOR UPDATE SKIP LOCKED
)
