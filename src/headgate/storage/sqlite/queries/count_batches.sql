-- Jobs of batches have become final, or have come back; :counts is an array of [batch, succeeded, failed, cancelled].
UPDATE batch
SET pending = pending - json_extract(counted.value, '$[1]') - json_extract(counted.value, '$[2]')
        - json_extract(counted.value, '$[3]'),
    succeeded = succeeded + json_extract(counted.value, '$[1]'),
    failed = failed + json_extract(counted.value, '$[2]'),
    cancelled = cancelled + json_extract(counted.value, '$[3]'),
    finished_at = CASE
        WHEN pending = json_extract(counted.value, '$[1]') + json_extract(counted.value, '$[2]')
            + json_extract(counted.value, '$[3]') THEN :now
    END
FROM json_each(:counts) AS counted
WHERE batch.id = json_extract(counted.value, '$[0]')
