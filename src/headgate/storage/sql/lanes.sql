-- Lanes: count the jobs that are added to them and removed from them.

-- part: no_aging
-- By how much the rank of a job is lower for each level of its priority, without aging: more than all times, which are below
-- 260000000000000000. So a higher priority always comes first.
300000000000000000

-- part: step
-- The same for a job: its aging, if it has one.
coalesce(aging, @no_aging)

-- part: lowest_rank
-- Below all ranks.
-9000000000000000000

-- part: is_fair
-- Whether jobs of a lane use the order of a fair queue. In a key, the quotation mark would be escaped.
arrivals.buckets LIKE '%["fair:%'

-- part: order_ref
substr(arrivals.buckets, {position}(arrivals.buckets, '["fair:'))

-- part: group_id
-- The group of a lane, as the column of that name is generated.
CASE WHEN @is_fair AND {position}(@order_ref, '\u001f') BETWEEN 1 AND {position}(@order_ref, '"]')
    THEN substr(@order_ref, 1, {position}(@order_ref, '\u001f') - 1) END

-- part: arrival_rows
{rows:arrivals(
    lane text, queue text, buckets json, wait_mode text, jobs integer, is_ready boolean, wakes_at bigint, rank bigint, place
)}

-- name: add_arrivals [postgres]
-- Insert an arrival for each number of jobs that were added to a lane, or removed from it (negative). Claims merge
-- arrivals into the lanes, so adding a job waits for no lane.
INSERT INTO headgate.arrival (lane, queue, buckets, wait_mode, jobs, is_ready, since, wakes_at, rank)
SELECT lane, queue, buckets, wait_mode, jobs, is_ready, :since::bigint, wakes_at, rank FROM @arrival_rows ORDER BY place

-- part: round
-- By how much a start raises the virtual time of a key of weight 1 (STEP in limits/fair.py): after a round, each key has had
-- one.
10080

-- part: first_virtual_time
-- The virtual time of a key that has had none, if `lowest` is the lowest virtual time in its line and `highest` the highest
-- so far: at the turn at which the last key to start so far did so, but not below the lowest in line, nor beyond the present
-- round. It is odd, so it is just before the keys that have had turns. Its first start counts twice, so that the new keys
-- after it come after it: new keys never stay before old ones.
(({least}({greatest}(lowest, coalesce(highest, lowest) - @round), lowest + @round) - 1) | 1)

-- part: highest_so_far(queue)
-- The highest virtual time of a queue so far, of its groups and the lanes without one; NULL if it has had none.
(
    SELECT max(last) FROM (
        SELECT max(virtual_time) AS last FROM headgate.lane
        WHERE lane.queue = $queue AND virtual_time IS NOT NULL AND group_id IS NULL
        UNION ALL
        SELECT max(virtual_time) FROM headgate.turn_group WHERE turn_group.queue = $queue
    ) AS so_far
)

-- part: lowest_in_line [sqlite]
-- The lowest virtual time in the line of a queue, of its groups and the lanes without one; NULL if it is empty.
(
    SELECT min(first) FROM (
        SELECT * FROM (
            SELECT lane.place AS first FROM lane
            WHERE lane.queue = arrivals.queue AND gated AND behind IS NULL AND since IS NOT NULL AND group_id IS NULL
            ORDER BY lane.place, since, id
            LIMIT 1
        )
        UNION ALL
        SELECT * FROM (
            SELECT virtual_time FROM turn_group WHERE turn_group.queue = arrivals.queue AND in_line ORDER BY virtual_time LIMIT 1
        )
    )
)

-- part: lowest_in_group(group)
-- The lowest virtual time of the lanes of a group that are in line.
(
    SELECT lane.place FROM headgate.lane
    WHERE lane.group_id = $group AND behind IS NULL AND since IS NOT NULL
    ORDER BY lane.place, since, lane.id
    LIMIT 1
)

-- part: highest_in_group(group)
(SELECT max(virtual_time) FROM headgate.lane WHERE lane.group_id = $group AND gated)

-- part: joined_virtual_time [sqlite]
-- The turn with which a lane or group joins a line.
CASE
    WHEN own IS NOT NULL THEN max(own, lowest + (lowest & 1))
    ELSE @first_virtual_time
END

-- name: join_groups [sqlite]
-- Put the groups of lanes that become due in line, before their lanes: each joins as a lane without a group does.
INSERT INTO turn_group AS known (id, queue, virtual_time, in_line)
SELECT group_id, queue, @joined_virtual_time, is_ready
FROM (
    SELECT
        group_id, queue, is_ready, highest, coalesce(lowest, highest, @round) AS lowest,
        (SELECT virtual_time FROM turn_group WHERE turn_group.id = group_id) AS own
    FROM (
        SELECT
            arrivals.group_id, queue, max(is_ready) AS is_ready, @lowest_in_line AS lowest, @highest_so_far(arrivals.queue) AS highest
        FROM (
            SELECT @group_id AS group_id, queue, is_ready FROM @arrival_rows
        ) AS arrivals
        WHERE arrivals.group_id IS NOT NULL
        GROUP BY arrivals.group_id, queue
    )
) AS joining
WHERE true
ON CONFLICT (id) DO UPDATE SET
    version = known.version + 1,
    virtual_time = CASE WHEN known.in_line OR NOT excluded.in_line THEN known.virtual_time ELSE excluded.virtual_time END,
    in_line = max(known.in_line, excluded.in_line)

-- name: add_arrivals [sqlite]
-- Count jobs in their lanes, which become due or sleep until their earliest delayed job is due. Lanes that become due are
-- a microsecond apart, so that they keep the order of their jobs; an empty lane waits for nothing. A lane of a fair queue
-- joins the line at the lowest virtual time in it, or at its own if that is higher; in an empty line, at the highest virtual
-- time so far.
INSERT INTO headgate.lane AS known (id, queue, buckets, wait_mode, waiting, since, wakes_at, virtual_time)
SELECT
    lane, queue, buckets, wait_mode, jobs, since, wakes_at, CASE WHEN joins THEN @joined_virtual_time END
FROM (
    SELECT
        lane, queue, buckets, wait_mode, jobs, since, wakes_at, joins, highest,
        coalesce(lowest, highest, @round) AS lowest,
        CASE WHEN joins THEN (SELECT virtual_time FROM lane AS stored WHERE stored.id = joining.lane) END AS own
    FROM (
        SELECT
            lane, queue, buckets, wait_mode, sum(jobs) AS jobs, min(wakes_at) AS wakes_at,
            CASE WHEN max(is_ready) THEN :since + min(CASE WHEN is_ready THEN place END) END AS since,
            max(is_ready) AND @is_fair AS joins,
            CASE
                WHEN max(is_ready) AND @is_fair
                    THEN CASE WHEN @group_id IS NULL THEN @lowest_in_line ELSE @lowest_in_group(@group_id) END
            END AS lowest,
            CASE
                WHEN max(is_ready) AND @is_fair
                    THEN CASE WHEN @group_id IS NULL THEN @highest_so_far(arrivals.queue) ELSE @highest_in_group(@group_id) END
            END AS highest
        FROM @arrival_rows
        GROUP BY lane
    ) AS joining
) AS joining
WHERE true
ON CONFLICT (id) DO UPDATE SET
    waiting = known.waiting + excluded.waiting,
    since = CASE WHEN known.waiting + excluded.waiting > 0 THEN coalesce(known.since, excluded.since) END,
    wakes_at = CASE
        WHEN known.waiting + excluded.waiting <= 0 THEN NULL
        WHEN known.wakes_at IS NULL OR excluded.wakes_at < known.wakes_at THEN coalesce(excluded.wakes_at, known.wakes_at)
        ELSE known.wakes_at
    END,
    behind = CASE WHEN known.waiting + excluded.waiting > 0 THEN known.behind END,
    virtual_time = CASE WHEN known.since IS NULL THEN coalesce(excluded.virtual_time, known.virtual_time) ELSE known.virtual_time END

-- name: count_arrivals [sqlite]
-- As add_arrivals, for jobs that join one stored lane, which is not of a fair queue: nothing else is read or changed. Changes
-- no row if the lane is not stored.
UPDATE lane
SET waiting = waiting + :jobs,
    since = coalesce(since, :since),
    wakes_at = coalesce(min(wakes_at, :wakes_at), wakes_at, :wakes_at)
WHERE id = :lane AND waiting >= 0

-- name: behind_of_lanes [postgres]
-- The buckets that these lanes wait behind.
SELECT DISTINCT behind
FROM unnest(:lanes::text[]) AS named (lane)
CROSS JOIN LATERAL (
    SELECT behind FROM headgate.lane WHERE lane.id = named.lane ORDER BY version DESC LIMIT 1
) AS newest
WHERE behind IS NOT NULL

-- name: behind_of_lanes [sqlite]
SELECT DISTINCT behind FROM headgate.lane WHERE id {any:lanes text} AND behind IS NOT NULL

-- name: reopen_buckets
-- Let the next claim visit buckets that may be open for the costs of other jobs.
-- Looked up by their ids, not among all that have a timer.
UPDATE headgate.bucket SET opens_at = :limit_now
FROM @target_ids
WHERE @by_key(bucket.id, target.id) AND coalesce(opens_at, 0) > :limit_now

-- name: clear_timers
-- Clear the timers of locked buckets that no lane waits behind.
UPDATE headgate.bucket SET opens_at = NULL
FROM @target_ids
@newest_bucket
-- A plain condition lets the planner read all buckets that have a timer.
WHERE @is_newest AND coalesce(opens_at, 0) <> 0 AND (SELECT 1 FROM headgate.lane WHERE behind = bucket.id LIMIT 1) IS NULL

-- part: arrived_in(lane_id, floor) [postgres]
-- The arrivals of a lane from an id on. Written as an equation and a bound, they could be read by the primary key, which
-- passes the arrivals of all other lanes: it looks cheaper if the table was empty, or had few lanes, when it was analyzed.
(arrival.lane, arrival.id + 0) >= ($lane_id, $floor) AND arrival.lane <= $lane_id

-- part: unsynced
-- Commit without waiting for the disk: rows lost in a crash of the server can be derived again from durable rows.
unsynced AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
)

-- name: merge [postgres]
-- Count arrived jobs in their lanes. These lanes become due, or sleep until their earliest delayed job is due. Returns
-- the lanes that have become empty, or seem empty, and the queues of all of them.
-- Arrivals of all queues are merged, the oldest first. Otherwise those of a queue that is paused, or that no node serves,
-- would pile up, and each read of arrivals would pass them. They are read from :floor on; below it there are none. Where
-- many are left, the :newest are merged, too: a job of another queue does not wait until all before it are merged. With
-- :queues, these are only those of some queues, :among so many of the newest. With each of them go :of_lane more of its
-- lane. To write a lane costs four times as much as to delete an arrival, and in a backlog in which many keys take turns,
-- each merge would write as many lanes as it merges jobs. low_watermarks.py uses `last`, `first_left`, `merger` and
-- `oldest_writer`. Lanes are locked in the order of their ids. This statement sees the lanes as of its start, and updates
-- the newest version of each. A lane that another merge inserts at the same time is not among them: its arrivals are stored
-- once more and left for the next merge. Lanes that become due get places in line in the order in which their jobs arrived.
-- The places are after the last one that was assigned (:after), and just before the present time: before those of lanes that
-- have had their turn since, and not before those that claims may have passed, as low_watermarks.py says. Lanes of fair
-- queues (:fair) are read from the low watermarks of this process.
-- A snapshot that read this version of a lane (:proven) found no waiting job of a rank below that front that requested no
-- start time. A job that it did not see has an arrival that was not merged then, and is merged now or later.
WITH @unsynced,
chosen AS MATERIALIZED (
    SELECT * FROM (
        SELECT ctid AS row, lane FROM headgate.arrival WHERE id >= :floor ORDER BY id LIMIT :oldest FOR UPDATE SKIP LOCKED
    ) AS oldest
    UNION ALL
    SELECT * FROM (
        SELECT ctid, lane FROM headgate.arrival
        WHERE id >= greatest(:floor, (SELECT max(id) FROM headgate.arrival WHERE id >= :floor) - :among)
            AND (:queues::text[] IS NULL OR queue = ANY(:queues))
        ORDER BY id DESC
        LIMIT :newest
        FOR UPDATE SKIP LOCKED
    ) AS newest
),
merged AS (
    DELETE FROM headgate.arrival
    USING unsynced
    -- Arrivals are never updated, so a locked one stays where it is.
    WHERE arrival.ctid = ANY(
        ARRAY(
            SELECT row FROM chosen
            UNION ALL
            SELECT same_lane.row
            FROM (SELECT DISTINCT lane FROM chosen) AS named
            CROSS JOIN LATERAL (
                SELECT ctid AS row FROM headgate.arrival
                WHERE @arrived_in(named.lane, :floor::bigint)
                ORDER BY arrival.lane, arrival.id + 0
                LIMIT :of_lane
                FOR UPDATE SKIP LOCKED
            ) AS same_lane
        )
    )
    RETURNING arrival.*
),
summed AS MATERIALIZED (
    SELECT
        lane, queue, buckets, wait_mode, sum(jobs) AS jobs, bool_or(is_ready) AND buckets <> '[]' AS is_ready,
        min(id) FILTER (WHERE is_ready) AS first, min(wakes_at) AS wakes_at,
        min(coalesce(rank, @lowest_rank)) FILTER (WHERE is_ready) AS rank, @is_fair AS is_fair, @group_id AS group_id
    FROM merged AS arrivals
    GROUP BY lane, queue, buckets, wait_mode
),
-- A lane of a fair queue joins the line at the lowest virtual time in it, or at its own if that is higher; in an empty line,
-- at the highest virtual time so far. A group of lanes joins the line of the queue in this way, and its lanes the line of
-- the group.
line AS MATERIALIZED (
    SELECT
        queue, highest,
        coalesce(
            least(
                (
                    SELECT lane.place FROM headgate.lane
                    WHERE lane.queue = joined.queue AND gated AND behind IS NULL AND since IS NOT NULL AND group_id IS NULL
                        AND lane.place >= coalesce(
                            (SELECT floor FROM {rows:fair(queue text, floor bigint)} WHERE fair.queue = joined.queue), 0
                        )
                    ORDER BY lane.place, since, id
                    LIMIT 1
                ),
                (
                    SELECT virtual_time FROM headgate.turn_group
                    WHERE turn_group.queue = joined.queue AND in_line
                    ORDER BY virtual_time
                    LIMIT 1
                )
            ),
            highest,
            @round
        ) AS lowest
    FROM (SELECT DISTINCT queue FROM summed WHERE (is_ready AND is_fair) OR group_id IS NOT NULL) AS joined
    CROSS JOIN LATERAL (SELECT @highest_so_far(joined.queue) AS highest) AS so_far
),
group_line AS MATERIALIZED (
    SELECT
        joining.group_id, highest,
        coalesce(@lowest_in_group(joining.group_id), highest, @round) AS lowest
    FROM (SELECT DISTINCT group_id FROM summed WHERE is_ready AND group_id IS NOT NULL) AS joining
    CROSS JOIN LATERAL (SELECT @highest_in_group(joining.group_id) AS highest) AS so_far
),
-- Groups are locked before lanes.
grouped AS (
    INSERT INTO headgate.turn_group AS known (id, queue, virtual_time, in_line)
    SELECT group_id, summed.queue, @first_virtual_time, bool_or(is_ready)
    FROM summed JOIN line ON line.queue = summed.queue
    WHERE group_id IS NOT NULL
    GROUP BY group_id, summed.queue, lowest, highest
    ORDER BY group_id
    ON CONFLICT (id) DO UPDATE SET
        version = known.version + 1,
        virtual_time = CASE
            WHEN known.in_line OR NOT excluded.in_line THEN known.virtual_time
            ELSE greatest(
                known.virtual_time, (SELECT lowest + (lowest & 1) FROM line WHERE line.queue = excluded.queue)
            )
        END,
        in_line = known.in_line OR excluded.in_line
    RETURNING id
),
placed AS MATERIALIZED (
    SELECT
        lane, summed.queue, buckets, wait_mode, jobs, wakes_at, rank,
        CASE
            WHEN is_ready THEN
                greatest(:after::bigint, :limit_now::bigint - count(*) OVER () - 1) + row_number() OVER (ORDER BY first)
        END AS since,
        CASE WHEN is_ready AND is_fair THEN @first_virtual_time END AS virtual_time,
        CASE WHEN is_ready AND is_fair THEN lowest + (lowest & 1) END AS lowest
    FROM summed
    LEFT JOIN LATERAL (
        SELECT lowest, highest FROM group_line WHERE group_line.group_id = summed.group_id
        UNION ALL
        SELECT lowest, highest FROM line WHERE line.queue = summed.queue AND summed.group_id IS NULL
    ) AS joining ON true
),
held AS MATERIALIZED (
    SELECT seen.version, placed.*
    FROM (
        SELECT
            lane AS id, jobs, since, virtual_time, lowest, wakes_at, rank,
            proven.version AS proven_version, proven.front AS proven_front
        FROM placed
        LEFT JOIN {rows:proven(lane_id text, version bigint, front bigint)} ON proven.lane_id = lane
        -- Without this condition, all old versions of a deleted lane would be read, to find none.
        WHERE EXISTS (SELECT 1 FROM headgate.known_lane WHERE known_lane.id = lane {no join})
            AND (SELECT count(*) FROM grouped) >= 0
        ORDER BY lane
    ) AS placed
    CROSS JOIN LATERAL (
        SELECT version FROM headgate.lane WHERE lane.id = placed.id ORDER BY version DESC LIMIT 1
    ) AS seen
    CROSS JOIN LATERAL (
        SELECT FROM headgate.lane
        WHERE lane.id = placed.id AND lane.version >= seen.version
        ORDER BY version DESC
        LIMIT 1
        FOR UPDATE
    ) AS locked
),
counted AS (
    UPDATE headgate.lane
    -- Time grows faster than versions. So a lane that was deleted and is inserted again begins above its old versions,
    -- and a front that was proven for a version that the server lost in a crash is not applied to another version.
    SET version = greatest(lane.version + 1, :limit_now::bigint), waiting = lane.waiting + placed.jobs,
        since = coalesce(lane.since, placed.since), wakes_at = least(lane.wakes_at, placed.wakes_at),
        virtual_time = CASE
            WHEN lane.since IS NOT NULL OR placed.virtual_time IS NULL THEN lane.virtual_time
            WHEN lane.virtual_time IS NULL THEN placed.virtual_time
            ELSE greatest(lane.virtual_time, placed.lowest)
        END,
        front = least(
            CASE WHEN lane.version = placed.proven_version THEN proven_front ELSE lane.front END, placed.rank
        )
    -- Arrays are planned as few rows, so the lanes are read by their index, whatever the statistics say. From a join with
    -- `held` the planner would compare the versions only after it has read all of them.
    FROM unnest(
        ARRAY(SELECT id FROM held), ARRAY(SELECT version FROM held), ARRAY(SELECT jobs FROM held),
        ARRAY(SELECT since FROM held), ARRAY(SELECT wakes_at FROM held), ARRAY(SELECT rank FROM held),
        ARRAY(SELECT proven_version FROM held), ARRAY(SELECT proven_front FROM held), ARRAY(SELECT virtual_time FROM held),
        ARRAY(SELECT lowest FROM held)
    ) AS placed (id, version, jobs, since, wakes_at, rank, proven_version, proven_front, virtual_time, lowest)
    WHERE @by_key(lane.id, placed.id) AND lane.version >= placed.version
    RETURNING lane.id, lane.waiting, lane.gated, lane.since, lane.wakes_at, lane.virtual_time
),
new AS (
    INSERT INTO headgate.known_lane (id, queue)
    SELECT lane, queue FROM placed WHERE lane NOT IN (SELECT id FROM counted) ORDER BY lane
    ON CONFLICT DO NOTHING
    RETURNING id
),
made AS (
    INSERT INTO headgate.lane (id, version, queue, buckets, wait_mode, waiting, since, wakes_at, virtual_time)
    SELECT lane, :limit_now::bigint, queue, buckets, wait_mode, jobs, since, wakes_at, virtual_time
    FROM placed
    WHERE lane IN (SELECT id FROM new)
    RETURNING id, waiting, gated, since, wakes_at, virtual_time
),
left_over AS (
    INSERT INTO headgate.arrival (lane, queue, buckets, wait_mode, jobs, is_ready, since, wakes_at, rank)
    SELECT lane, queue, buckets, wait_mode, jobs, is_ready, since, wakes_at, rank FROM merged
    WHERE lane NOT IN (SELECT id FROM counted) AND lane NOT IN (SELECT id FROM new)
)
SELECT
    -- Lanes that wait for their turn although their count shows no job.
    coalesce(json_agg(id) FILTER (WHERE waiting <= 0 AND gated AND (since IS NOT NULL OR wakes_at IS NOT NULL)), '[]')
        AS seems_empty,
    (SELECT coalesce(json_agg(DISTINCT queue), '[]') FROM summed) AS queues,
    max(since) FILTER (WHERE virtual_time IS NULL) AS since,
    (SELECT count(*) FROM merged) AS merged, (SELECT max(id) FROM merged) AS last,
    (SELECT min(id) FROM headgate.arrival WHERE id >= :floor AND id NOT IN (SELECT id FROM merged)) AS first_left,
    (SELECT pg_current_xact_id()::text::bigint) AS merger,
    (SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint) AS oldest_writer
FROM (SELECT * FROM counted UNION ALL SELECT * FROM made) AS merged_lane
-- Nothing was merged: no transaction id is assigned either.
HAVING count(*) > 0

-- name: lock_empty [postgres]
-- Lock those of these lanes that seem to be empty, without those that another transaction has locked.
SELECT locked.id, locked.version, locked.behind
FROM unnest(:lanes::text[]) AS named (lane)
CROSS JOIN LATERAL (
    SELECT version FROM headgate.lane WHERE lane.id = named.lane ORDER BY version DESC LIMIT 1
) AS seen
CROSS JOIN LATERAL (
    SELECT id, version, behind FROM headgate.lane
    WHERE lane.id = named.lane AND lane.version >= seen.version AND waiting <= 0
    ORDER BY version DESC
    LIMIT 1
    FOR UPDATE SKIP LOCKED
) AS locked

-- name: empty_lanes [postgres]
-- Take these locked lanes out of line if they have no job. The read of a lane begins at its front: beside an open
-- transaction, the index still has all jobs that were below it. NOT EXISTS could be planned as a join that reads the jobs
-- of all lanes; a subquery with LIMIT is run for each lane.
UPDATE headgate.lane SET version = lane.version + 1, since = NULL, behind = NULL, wakes_at = NULL
FROM {rows:empty(id text, version bigint)}
WHERE @by_key(lane.id, empty.id) AND lane.version = empty.version
    AND (
        SELECT 1 FROM headgate.job
        WHERE job.lane = lane.id AND waiting AND NOT delayed AND rank >= lane.front
        LIMIT 1
    ) IS NULL
    AND (SELECT 1 FROM headgate.job WHERE job.lane = lane.id AND waiting AND delayed LIMIT 1) IS NULL
