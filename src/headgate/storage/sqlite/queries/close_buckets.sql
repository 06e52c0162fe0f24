-- Buckets grant nothing until then; :draws is an array of [limit, key].
INSERT INTO bucket (limit_name, key, state, idle_at, closed_until)
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), NULL, :until, :until
FROM json_each(:draws)
WHERE true
ON CONFLICT (limit_name, key) DO UPDATE SET
    closed_until = max(closed_until, excluded.closed_until),
    idle_at = max(idle_at, excluded.idle_at)
