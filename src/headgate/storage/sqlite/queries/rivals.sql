-- The keys of a limit whose buckets have opened for those who wait behind them. A key that has starts in the window is
-- let in a microsecond after those that have none, and is a rival already.
SELECT json_group_array(key)
FROM (SELECT key FROM bucket WHERE limit_name = :limit AND opens_at <= :limit_now + 1 LIMIT 1000)
