-- What these schedules enqueue is enqueued.
UPDATE headgate.schedule
SET next_at = fired.next_at, last_at = fired.last_at, open = open + fired.opened,
    last_job = coalesce(fired.last_job, schedule.last_job), revision = revision + 1,
    skipped = coalesce(fired.skipped, schedule.skipped), skipped_at = coalesce(fired.skipped_at, schedule.skipped_at)
FROM unnest(:names::text[], :next_at::bigint[], :last_at::bigint[], :opened::bigint[], :last_jobs::text[],
    :skipped::text[], :skipped_at::bigint[])
    AS fired (name, next_at, last_at, opened, last_job, skipped, skipped_at)
WHERE schedule.name = fired.name
