-- Buckets of a limit that lanes wait behind are looked at by the next claim; of one key, or of all.
UPDATE bucket SET opens_at = :limit_now
WHERE limit_name = :limit AND (:key IS NULL OR key = :key) AND opens_at > :limit_now
