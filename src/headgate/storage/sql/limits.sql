-- Limits: their settings, and their buckets except in claims.

-- name: settings
-- Return all settings, and for each limit the newest declaration, unless no node has noted it for a long time.
SELECT limit_name AS "limit", scope, target, rule, is_paused, tier FROM headgate.limit_setting
UNION ALL
SELECT substr(task, length(:subject::text) + 1), 'declared', '', signature, false, NULL
FROM headgate.task_limit_set
WHERE is_newest AND substr(task, 1, length(:subject::text)) = :subject AND last_seen > :since::bigint

-- name: revision
SELECT revision FROM headgate.limit_revision

-- name: next_revision
UPDATE headgate.limit_revision SET revision = revision + 1

-- name: lock_settings
-- Keep other transactions from changing a setting until this one ends.
SELECT revision FROM headgate.limit_revision {for update}

-- name: set_limit
INSERT INTO headgate.limit_setting (limit_name, scope, target, rule, is_paused, tier)
VALUES (:limit, :scope, :target, :rule, :is_paused, :tier)
ON CONFLICT (limit_name, scope, target) DO UPDATE SET
    rule = excluded.rule, is_paused = excluded.is_paused, tier = excluded.tier

-- name: unset_limit
DELETE FROM headgate.limit_setting WHERE limit_name = :limit AND scope = :scope AND target = :target

-- name: reopen_limit
-- Let the next claim visit the buckets of a limit that lanes wait behind. They are locked in the order of their ids.
UPDATE headgate.bucket SET opens_at = :limit_now
WHERE id IN (
    SELECT id FROM headgate.bucket
    WHERE limit_name = :limit AND opens_at > :limit_now
    ORDER BY id
    {for update}
)

-- name: reset_bucket
-- Reset a bucket to the state of a new one; :keep_state leaves the permits that are still held.
UPDATE headgate.bucket
SET state = CASE WHEN :keep_state THEN state END,
    idle_at = CASE WHEN :keep_state THEN idle_at ELSE 0 END,
    closed_until = 0
WHERE id = :id

-- name: forget_notes_of_bucket
-- Delete what is stored under the ids of requests to a bucket.
DELETE FROM headgate.bucket_note WHERE bucket = :bucket

-- name: close_buckets
-- Close these locked buckets until then.
UPDATE headgate.bucket
SET closed_until = {greatest}(closed_until, :until), idle_at = {greatest}(idle_at, :until)
WHERE id {any:ids text}

-- name: charge [postgres]
-- Store the states of buckets that were charged, and are locked.
UPDATE headgate.bucket SET @raise_version state = target.state, idle_at = target.idle_at
FROM {rows:target(id text, limit_name text, key text, state text, idle_at bigint)}
@newest_bucket
WHERE @is_newest

-- name: charge [sqlite]
-- The first charge of a bucket inserts its row.
INSERT INTO bucket (id, limit_name, key, state, idle_at)
SELECT id, limit_name, key, state, idle_at
FROM {rows:target(id text, limit_name text, key text, state text, idle_at bigint)}
WHERE true
ON CONFLICT (id) DO UPDATE SET state = excluded.state, idle_at = excluded.idle_at

-- name: missing_buckets [postgres]
-- Return those of these buckets that have no row. NOT EXISTS could be planned as a join that reads all buckets, as soon as
-- many of their rows are dead; a subquery with LIMIT is run for each.
SELECT id FROM {rows:target(id text, limit_name text, key text)}
WHERE (SELECT 1 FROM headgate.known_bucket WHERE known_bucket.id = target.id LIMIT 1) IS NULL

-- name: missing_buckets [sqlite]
SELECT id FROM {rows:target(id text, limit_name text, key text)}
WHERE id NOT IN (SELECT bucket.id FROM bucket WHERE bucket.id = target.id)

-- name: ensure_buckets [postgres]
-- Insert rows for buckets that have none, so that they can be locked, and lanes can wait behind them. The version is not
-- below those of a bucket with this id that was deleted.
WITH new AS (
    INSERT INTO headgate.known_bucket (id)
    SELECT id FROM {rows:target(id text, limit_name text, key text)}
    ORDER BY id
    ON CONFLICT (id) DO NOTHING
    RETURNING id
)
INSERT INTO headgate.bucket (id, version, limit_name, key, idle_at)
SELECT id, @server_clock >> 20, limit_name, key, :limit_now::bigint
FROM {rows:target(id text, limit_name text, key text)}
WHERE id IN (SELECT id FROM new)

-- name: ensure_buckets [sqlite]
INSERT INTO bucket (id, limit_name, key, idle_at)
SELECT id, limit_name, key, :limit_now
FROM {rows:target(id text, limit_name text, key text)}
WHERE true
ON CONFLICT (id) DO NOTHING

-- name: set_timers
-- Set when a locked bucket opens, as long as a lane waits behind it.
UPDATE headgate.bucket
SET opens_at = target.opens_at
FROM (
    SELECT
        timer.id,
        -- The planner would read all lanes for an EXISTS.
        CASE WHEN (SELECT true FROM headgate.lane WHERE behind = timer.id LIMIT 1) THEN timer.opens_at END AS opens_at
    FROM {rows:timer(id text, opens_at bigint)}
) AS target
@newest_bucket
WHERE @is_newest AND coalesce(bucket.opens_at, -1) <> coalesce(target.opens_at, -1)

-- name: rivals
-- Return the keys of a limit whose buckets have opened for the lanes behind them, unless all these lanes are in paused
-- queues. A key with starts in the window is admitted a microsecond after keys without, but is already a rival.
SELECT key FROM headgate.bucket
WHERE limit_name = :limit AND opens_at <= :limit_now::bigint + 1
    AND EXISTS (
        SELECT 1 FROM headgate.lane WHERE behind = bucket.id AND queue NOT IN (SELECT queue FROM headgate.paused_queue)
        {no join}
    )
LIMIT 1000

-- name: note_of_bucket
-- Return what is stored under the id of a request to a bucket and has not expired.
SELECT note FROM headgate.bucket_note WHERE bucket = :bucket AND id = :id AND until + 0 > :limit_now

-- name: keep_note_of_bucket
INSERT INTO headgate.bucket_note (bucket, id, note, until) VALUES (:bucket, :id, :note, :until)
ON CONFLICT (bucket, id) DO UPDATE SET note = excluded.note, until = excluded.until

-- name: lock_limit
-- Lock and return all buckets of a limit.
SELECT id FROM headgate.bucket WHERE limit_name = :limit ORDER BY id {for update}

-- part: lanes_of_limit [postgres]
-- Lanes whose jobs use a limit.
SELECT id FROM headgate.lane WHERE strpos(buckets, :needle) > 0
UNION
SELECT lane FROM headgate.arrival WHERE strpos(buckets, :needle) > 0

-- name: waits_for_limit [postgres]
-- Return how many waiting jobs use a limit: those in lanes, those that have just arrived there, and blocked ones.
SELECT (
    SELECT count(*) FROM headgate.job WHERE waiting AND NOT delayed AND lane IN (@lanes_of_limit)
) + (
    SELECT count(*) FROM headgate.job WHERE waiting AND delayed AND lane IN (@lanes_of_limit)
) + (
    SELECT count(*) FROM headgate.job WHERE blocked AND strpos(buckets, :needle) > 0
)

-- name: waits_for_limit [sqlite]
-- There are no arrivals here, and lanes count exactly.
SELECT (SELECT coalesce(sum(waiting), 0) FROM lane WHERE waiting > 0 AND instr(buckets, :needle) > 0)
    + (SELECT count(*) FROM job WHERE blocked AND instr(buckets, :needle) > 0)

-- name: permits_of_limit
-- Return the states of all buckets of a limit that hold permits.
SELECT state FROM headgate.bucket WHERE limit_name = :limit AND state LIKE '1:concurrency:%'

-- name: forget_buckets [postgres]
-- Without those that a lane waits behind whose jobs have left, which is known once their arrivals are merged: a lane behind
-- a bucket that is not there would never be visited again.
WITH gone AS (
    DELETE FROM headgate.bucket WHERE limit_name = :limit AND opens_at IS NULL RETURNING id
)
DELETE FROM headgate.known_bucket WHERE id IN (SELECT id FROM gone)

-- name: reset_buckets [postgres]
-- Reset the buckets of a limit that lanes wait behind; the next claim visits these lanes.
UPDATE headgate.bucket SET state = NULL, idle_at = 0, closed_until = 0, opens_at = :limit_now::bigint
WHERE limit_name = :limit

-- name: forget_buckets [sqlite]
DELETE FROM bucket WHERE limit_name = :limit

-- name: forget_settings
DELETE FROM headgate.limit_setting WHERE limit_name = :limit

-- name: use_limit_time [postgres]
-- Store how far limit time has gone, without waiting for the disk: after a restart it begins no earlier.
WITH @unsynced
UPDATE headgate.limit_time SET last_used = :limit_now::bigint FROM unsynced WHERE last_used < :limit_now::bigint - 1000000

-- name: use_limit_time [sqlite]
UPDATE limit_time SET last_used = max(last_used, :limit_now)
