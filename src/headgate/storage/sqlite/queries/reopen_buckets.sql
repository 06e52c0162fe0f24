-- Buckets that may be open for what others ask are looked at by the next claim; :buckets are their ids.
UPDATE bucket SET opens_at = :limit_now
WHERE id IN (SELECT value FROM json_each(:buckets)) AND opens_at > :limit_now
