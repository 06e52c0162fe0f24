-- Make sure that buckets have a row which lanes can wait behind; :draws is an array of [id, limit, key].
INSERT INTO bucket (id, limit_name, key, idle_at)
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'), :limit_now
FROM json_each(:draws)
WHERE true
ON CONFLICT (id) DO NOTHING
