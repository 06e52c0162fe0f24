-- Keep the new states of charged buckets; :buckets is an array of [limit, key, state, idle_at].
INSERT INTO bucket (limit_name, key, state, idle_at)
SELECT
    json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'), json_extract(value, '$[3]')
FROM json_each(:buckets)
WHERE true
ON CONFLICT (limit_name, key) DO UPDATE SET state = excluded.state, idle_at = excluded.idle_at
