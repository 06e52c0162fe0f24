-- Buckets and their permits.

-- part: server_clock
-- The server's wall clock in microseconds, now and not at the beginning of the transaction.
(extract(epoch FROM clock_timestamp()) * 1000000)::bigint

-- part: locked_buckets [postgres]
-- The buckets of :ids, locked in the order of their ids. A lock that had to wait returns the version that was there then.
(
    SELECT locked.*
    FROM (SELECT id FROM @target_ids ORDER BY id) AS target
    CROSS JOIN LATERAL (
        SELECT * FROM headgate.bucket WHERE bucket.id = target.id ORDER BY version DESC LIMIT 1 FOR UPDATE
    ) AS locked
)

-- part: target_ids [postgres]
unnest(:ids::text[]) AS target (id)

-- part: target_ids [sqlite]
(SELECT value AS id FROM json_each(:ids)) AS target

-- part: newest_bucket [postgres]
-- Where the current version of each of the locked buckets in `target` is. A join by the id alone would read all versions;
-- one by the version, too, may be planned as a join by the version alone, which all buckets of the last second share.
CROSS JOIN LATERAL (
    SELECT ctid AS row FROM headgate.bucket WHERE bucket.id = target.id ORDER BY version DESC LIMIT 1
) AS newest

-- part: newest_bucket [sqlite]

-- part: is_newest [postgres]
bucket.ctid = newest.row

-- part: is_newest [sqlite]
bucket.id = target.id

-- part: raise_version [postgres]
-- The version of a bucket after a charge: that of the last second, or a new one.
version = greatest(bucket.version, @server_clock >> 20),

-- part: raise_version [sqlite]

-- name: buckets_for_update [postgres]
-- Lock these buckets in the order of their ids, and return each with the time of its lock.
SELECT
    id, limit_name AS "limit", key, state, opens_at, closed_until, @server_clock AS locked_at,
    (SELECT ahead FROM headgate.limit_time) AS ahead
FROM @locked_buckets AS bucket

-- name: buckets_for_update [sqlite]
SELECT id, limit_name AS "limit", key, state, opens_at, closed_until FROM bucket WHERE id {any:ids text}

-- name: write_permits
-- Store the permits of locked buckets after some were returned. The next claim visits the lanes behind them.
UPDATE headgate.bucket
SET @raise_version state = target.state, idle_at = target.idle_at,
    opens_at = CASE WHEN opens_at IS NOT NULL THEN {least}(opens_at, :limit_now) END
FROM {rows:target(id text, state text, idle_at bigint)}
@newest_bucket
WHERE @is_newest

-- name: keep_permits
-- Store which permits jobs still hold.
UPDATE headgate.job SET held = given.kept
FROM {rows:given(job_id job_id, kept bigint)}
WHERE @by_key(job.id, given.job_id)
