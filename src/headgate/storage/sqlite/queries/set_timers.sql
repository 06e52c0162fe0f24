-- A bucket opens at its time as long as a lane waits behind it; :buckets is an array of [limit, key, opens_at].
UPDATE bucket
SET opens_at = CASE
    WHEN EXISTS (SELECT 1 FROM lane WHERE behind = bucket.id) THEN json_extract(timer.value, '$[2]')
END
FROM json_each(:buckets) AS timer
WHERE limit_name = json_extract(timer.value, '$[0]') AND bucket.key = json_extract(timer.value, '$[1]')
