-- Buckets that no lane waits behind any more need no timer.
UPDATE headgate.bucket SET opens_at = NULL
WHERE id = ANY(:ids::bytea[]) AND opens_at IS NOT NULL AND NOT EXISTS (SELECT 1 FROM headgate.lane WHERE behind = bucket.id)
