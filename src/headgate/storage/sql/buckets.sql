-- Buckets and their permits.

-- part: server_clock
-- The server's wall clock in microseconds, now and not at the beginning of the transaction.
(extract(epoch FROM clock_timestamp()) * 1000000)::bigint

-- name: buckets_for_update [postgres]
-- Lock these buckets in the order of their ids, and return each with the time of its lock.
SELECT
    id, limit_name AS "limit", key, state, opens_at, closed_until, @server_clock AS locked_at,
    (SELECT ahead FROM headgate.limit_time) AS ahead
FROM (SELECT * FROM headgate.bucket WHERE id {any:ids text} ORDER BY id FOR UPDATE) AS bucket

-- name: buckets_for_update [sqlite]
SELECT id, limit_name AS "limit", key, state, opens_at, closed_until FROM bucket WHERE id {any:ids text}

-- name: write_permits
-- Store the permits of buckets after some were returned. The next claim visits the lanes behind them.
UPDATE headgate.bucket
SET state = left_over.state, idle_at = left_over.idle_at,
    opens_at = CASE WHEN opens_at IS NOT NULL THEN {least}(opens_at, :limit_now) END
FROM {rows:left_over(id text, state text, idle_at bigint)}
WHERE bucket.id = left_over.id

-- name: keep_permits
-- Store which permits jobs still hold.
UPDATE headgate.job SET held = given.kept
FROM {rows:given(job_id text, kept bigint)}
WHERE job.id = given.job_id
