-- Buckets that no lane waits behind any more need no timer; :buckets are their ids.
UPDATE bucket SET opens_at = NULL
WHERE id IN (SELECT value FROM json_each(:buckets)) AND NOT EXISTS (SELECT 1 FROM lane WHERE behind = bucket.id)
