-- Buckets and their permits.

-- name: buckets_for_update
-- These buckets, locked in the order of their ids.
SELECT id, limit_name AS "limit", key, state, opens_at, closed_until
FROM headgate.bucket
WHERE id {any:ids text}
ORDER BY id
{for update}

-- name: write_permits
-- Keep who holds permits of buckets after some have come back. The next claim looks at whoever waits behind them.
UPDATE headgate.bucket
SET state = left_over.state, idle_at = left_over.idle_at,
    opens_at = CASE WHEN opens_at IS NOT NULL THEN {least}(opens_at, :limit_now) END
FROM {rows:left_over(id text, state text, idle_at bigint)}
WHERE bucket.id = left_over.id

-- name: keep_permits
-- Keep which permits jobs still hold.
UPDATE headgate.job SET held = given.kept
FROM {rows:given(job_id text, kept bigint)}
WHERE job.id = given.job_id
