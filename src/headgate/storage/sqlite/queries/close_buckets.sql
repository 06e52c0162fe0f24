-- Buckets grant nothing until then; :draws is an array of [id, limit, key].
INSERT INTO bucket (id, limit_name, key, state, idle_at, closed_until)
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'), NULL, :until, :until
FROM json_each(:draws)
WHERE true
ON CONFLICT (id) DO UPDATE SET
    closed_until = max(closed_until, excluded.closed_until),
    idle_at = max(idle_at, excluded.idle_at)
