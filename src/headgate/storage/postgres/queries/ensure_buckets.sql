-- Make sure that buckets have a row which can be locked.
INSERT INTO headgate.bucket (id, limit_name, key, idle_at)
SELECT id, limit_name, key, :limit_now::bigint
FROM unnest(:ids::text[], :limits::text[], :keys::text[]) AS new (id, limit_name, key)
ORDER BY id
ON CONFLICT (id) DO NOTHING
