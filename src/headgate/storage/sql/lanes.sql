-- Lanes, and the jobs that come to them and leave them.

-- name: arrive [postgres]
-- Note that jobs have come to lanes, or left them (a negative number). Claims merge these notes into the lanes, so nobody
-- who adds a job waits for a lane.
INSERT INTO headgate.arrival (lane, queue, draws, variant, jobs, is_ready, since, wakes_at)
SELECT lane, queue, draws, variant, jobs, is_ready, :since::bigint, wakes_at
FROM {rows:come(lane text, queue text, draws json, variant text, jobs integer, is_ready boolean, wakes_at bigint, place)}
ORDER BY place

-- name: arrive [sqlite]
-- Count jobs in their lanes, which become due or sleep until their earliest delayed job. Lanes that become due are a
-- microsecond apart, so that they keep the order in which they came; an empty lane waits for nothing.
INSERT INTO headgate.lane AS known (id, queue, draws, variant, waiting, since, wakes_at)
SELECT
    lane, queue, draws, variant, sum(jobs),
    CASE WHEN max(is_ready) THEN :since + min(CASE WHEN is_ready THEN place END) END, min(wakes_at)
FROM {rows:come(lane text, queue text, draws json, variant text, jobs integer, is_ready boolean, wakes_at bigint, place)}
GROUP BY lane
ON CONFLICT (id) DO UPDATE SET
    waiting = known.waiting + excluded.waiting,
    since = CASE WHEN known.waiting + excluded.waiting > 0 THEN coalesce(known.since, excluded.since) END,
    wakes_at = CASE
        WHEN known.waiting + excluded.waiting <= 0 THEN NULL
        WHEN known.wakes_at IS NULL OR excluded.wakes_at < known.wakes_at THEN coalesce(excluded.wakes_at, known.wakes_at)
        ELSE known.wakes_at
    END,
    behind = CASE WHEN known.waiting + excluded.waiting > 0 THEN known.behind END

-- name: behind_of_lanes
-- The buckets that these lanes wait behind.
SELECT DISTINCT behind FROM headgate.lane WHERE id {any:lanes text} AND behind IS NOT NULL

-- name: reopen_buckets
-- Let the next claim look at buckets that may be open for what others ask.
UPDATE headgate.bucket SET opens_at = :limit_now WHERE id {any:ids text} AND opens_at > :limit_now

-- name: clear_timers
-- Buckets that no lane waits behind need no timer.
UPDATE headgate.bucket SET opens_at = NULL
WHERE id {any:ids text} AND opens_at IS NOT NULL AND NOT EXISTS (SELECT 1 FROM headgate.lane WHERE behind = bucket.id)

-- part: unsynced
-- Commit without waiting for the disk: what is lost with the server can be told again from what is durable.
unsynced AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
)

-- name: merge [postgres]
-- Jobs that have arrived are counted in their lanes, which become due, or sleep until their earliest delayed job. What
-- comes back are lanes that have become empty, or seem so.
-- Lanes are taken in the order of their ids, and the newest version of each is what is looked at. They get places in line
-- in the order in which they came, after the last one that was given away (:after). Arrivals of all
-- queues are taken, the oldest first: those of a queue that is paused, or that nobody serves, would pile up, and every
-- look at arrivals would meet them. They are read from :floor on, below which there is none: see low_watermarks.py, which
-- asks for `last`, `first_left`, `merger` and `oldest_writer`.
WITH @unsynced,
merged AS (
    DELETE FROM headgate.arrival
    USING unsynced
    WHERE id IN (
        SELECT id FROM headgate.arrival WHERE id >= :floor ORDER BY id LIMIT :count FOR UPDATE SKIP LOCKED
    )
    RETURNING arrival.*
),
come AS (
    SELECT
        lane, queue, draws, variant, sum(jobs) AS jobs, bool_or(is_ready) AND draws <> '[]' AS is_ready,
        min(since) FILTER (WHERE is_ready) AS since, min(id) FILTER (WHERE is_ready) AS first, min(wakes_at) AS wakes_at
    FROM merged
    GROUP BY lane, queue, draws, variant
)
INSERT INTO headgate.lane AS known (id, queue, draws, variant, waiting, since, wakes_at)
SELECT
    lane, queue, draws, variant, jobs,
    CASE WHEN is_ready THEN greatest(since, :after::bigint) + row_number() OVER (ORDER BY first) END,
    wakes_at
FROM come
ORDER BY lane
ON CONFLICT (id) DO UPDATE SET
    waiting = known.waiting + excluded.waiting,
    since = coalesce(known.since, excluded.since),
    wakes_at = least(known.wakes_at, excluded.wakes_at)
RETURNING CASE WHEN waiting <= 0 AND gated AND (since IS NOT NULL OR wakes_at IS NOT NULL) THEN id END AS seems_empty, since,
    (SELECT count(*) FROM merged) AS merged, (SELECT max(id) FROM merged) AS last,
    (SELECT min(id) FROM headgate.arrival WHERE id >= :floor AND id NOT IN (SELECT id FROM merged)) AS first_left,
    (SELECT pg_current_xact_id()::text::bigint) AS merger,
    (SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint) AS oldest_writer

-- name: lock_empty [postgres]
-- Lanes that seem to be empty, locked; those that somebody claims from are his to judge.
SELECT id, behind FROM headgate.lane WHERE id {any:lanes text} AND waiting <= 0 FOR UPDATE SKIP LOCKED

-- name: empty_lanes [postgres]
-- These lanes, which are locked, have no job: nothing is waited for.
UPDATE headgate.lane SET since = NULL, behind = NULL, wakes_at = NULL
WHERE id {any:lanes text} AND NOT EXISTS (SELECT 1 FROM headgate.job WHERE job.lane = lane.id AND waiting)
