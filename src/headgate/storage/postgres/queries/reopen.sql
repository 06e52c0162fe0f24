-- Buckets of a limit that lanes wait behind are looked at by the next claim; of one key, or of all.
UPDATE headgate.bucket SET opens_at = :limit_now
WHERE id IN (
    SELECT id FROM headgate.bucket
    WHERE limit_name = :limit AND (:key::text IS NULL OR key = :key) AND opens_at > :limit_now
    ORDER BY id
    FOR UPDATE
)
