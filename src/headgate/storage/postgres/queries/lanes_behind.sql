-- The buckets that these lanes wait behind, as far as can be seen without a lock.
SELECT DISTINCT bucket.limit_name, bucket.key
FROM headgate.lane JOIN headgate.bucket ON bucket.id = lane.behind
WHERE lane.id = ANY(:lanes::text[])
