-- What these schedules enqueue is enqueued; :fired is an array of [name, next_at, last_at, opened, last_job, skipped,
-- skipped_at].
UPDATE schedule
SET next_at = json_extract(value, '$[1]'),
    last_at = json_extract(value, '$[2]'),
    open = open + json_extract(value, '$[3]'),
    last_job = coalesce(json_extract(value, '$[4]'), last_job),
    revision = revision + 1,
    skipped = coalesce(json_extract(value, '$[5]'), skipped),
    skipped_at = coalesce(json_extract(value, '$[6]'), skipped_at)
FROM json_each(:fired)
WHERE name = json_extract(value, '$[0]')
