-- Keep the new states of charged buckets; :buckets is an array of [id, limit, key, state, idle_at].
INSERT INTO bucket (id, limit_name, key, state, idle_at)
SELECT
    json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'), json_extract(value, '$[3]'),
    json_extract(value, '$[4]')
FROM json_each(:buckets)
WHERE true
ON CONFLICT (id) DO UPDATE SET state = excluded.state, idle_at = excluded.idle_at
