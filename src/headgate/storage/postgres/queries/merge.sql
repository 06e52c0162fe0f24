-- Jobs that have arrived are counted in their lanes, which become due, or sleep until their earliest delayed job. What
-- comes back are lanes that have become empty, or seem so.
-- Lanes are taken in the order of their ids, and the newest version of each is what is looked at. They get places in line
-- in the order in which they came, after the last one that was given away (:after). Arrivals of all
-- queues are taken, the oldest first: those of a queue that is paused, or that nobody serves, would pile up, and every
-- look at arrivals would meet them.
WITH @unsynced,
merged AS (
    DELETE FROM headgate.arrival
    USING unsynced
    WHERE id IN (
        SELECT id FROM headgate.arrival ORDER BY id LIMIT :count FOR UPDATE SKIP LOCKED
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
    (SELECT count(*) FROM merged) AS merged
