-- Buckets after permits came back: whoever waits behind one is looked at by the next claim; :buckets is an array of
-- [limit, key, state, idle_at].
UPDATE bucket
SET state = json_extract(given.value, '$[2]'),
    idle_at = json_extract(given.value, '$[3]'),
    opens_at = CASE WHEN opens_at IS NOT NULL THEN min(opens_at, :limit_now) END
FROM json_each(:buckets) AS given
WHERE bucket.limit_name = json_extract(given.value, '$[0]') AND bucket.key = json_extract(given.value, '$[1]')
