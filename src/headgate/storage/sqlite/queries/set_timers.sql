-- A bucket opens at its time as long as a lane waits behind it; :buckets is an array of [limit, key, opens_at].
UPDATE bucket
SET opens_at = timer.opens_at
FROM (
    SELECT
        timed.id,
        CASE
            WHEN EXISTS (SELECT 1 FROM lane WHERE behind = timed.id) THEN json_extract(wanted.value, '$[2]')
        END AS opens_at
    FROM json_each(:buckets) AS wanted
    JOIN bucket AS timed
        ON timed.limit_name = json_extract(wanted.value, '$[0]') AND timed.key = json_extract(wanted.value, '$[1]')
) AS timer
WHERE bucket.id = timer.id AND bucket.opens_at IS NOT timer.opens_at
