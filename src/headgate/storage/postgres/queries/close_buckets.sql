-- Buckets grant nothing until then.
INSERT INTO headgate.bucket AS known (id, limit_name, key, state, idle_at, closed_until)
SELECT id, limit_name, key, NULL, :until::bigint, :until::bigint
FROM unnest(:ids::text[], :limits::text[], :keys::text[]) AS new (id, limit_name, key)
ORDER BY id
ON CONFLICT (id) DO UPDATE SET
    closed_until = greatest(known.closed_until, excluded.closed_until), idle_at = greatest(known.idle_at, excluded.idle_at)
