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
