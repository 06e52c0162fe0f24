-- The keys of a limit whose buckets have opened for those who wait behind them, unless all of these are in paused
-- queues. A key that has starts in the window is let in a microsecond after those that have none, and is a rival already.
SELECT key FROM headgate.bucket
WHERE limit_name = :limit AND opens_at <= :limit_now::bigint + 1
    AND EXISTS (
        SELECT 1 FROM headgate.lane WHERE behind = bucket.id AND queue NOT IN (SELECT queue FROM headgate.paused_queue)
    )
LIMIT 1000
