-- Claims: the snapshot, the rows that are locked and read after it, and the rows that are written.

-- part: known
-- The limit sets of jobs that the node may start: one text, which is cheaper to send than a list, split once a statement.
(SELECT string_to_array(:known::text, E'\n'))::text[]

-- part: limit_set_is_known [postgres]
limit_set = ANY(@known)

-- part: limit_set_is_known [sqlite]
limit_set {any:known_json text}

-- part: claim_time [postgres]
(SELECT now FROM instant)

-- part: claim_time [sqlite]
:now

-- part: levels [postgres]
-- A row for each priority.
generate_series(0, 9) AS level (priority)

-- part: levels [sqlite]
(SELECT column1 AS priority FROM (VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9))) AS level

-- part: limits_are_known [postgres]
NOT EXISTS (
    SELECT 1 FROM json_array_elements(lane.buckets::json) AS ref WHERE NOT ref ->> 0 = ANY(:limits::text[])
)

-- part: limits_are_known [sqlite]
-- Damaged buckets are on a limit that no node has.
NOT EXISTS (
    SELECT 1 FROM json_each(iif(json_valid(lane.buckets), lane.buckets, '[["", ""]]')) AS ref
    WHERE json_extract(ref.value, '$[0]') NOT IN (SELECT value FROM json_each(:limits))
)

-- part: lane_is_known
-- Whether this node can claim from a lane: it has the rules of all limits, and the limit set of a ready job among the first
-- of each priority.
@limits_are_known
AND EXISTS (
    SELECT 1
    FROM (
        SELECT limit_set FROM headgate.job
        WHERE job.lane = lane.id AND waiting AND NOT delayed
        ORDER BY rank, @place
        LIMIT 100
    ) AS first
    WHERE @limit_set_is_known
    UNION ALL
    SELECT 1
    FROM @levels
    WHERE EXISTS (
        SELECT 1
        FROM (
            SELECT limit_set FROM headgate.job
            WHERE job.lane = lane.id AND waiting AND delayed AND job.priority = level.priority AND run_at <= @claim_time
            ORDER BY run_at, @place
            LIMIT 100
        ) AS due
        WHERE @limit_set_is_known
    )
)

-- part: is_wanted
-- Whether a lane is read: with :known_only, only one that this node can claim from.
(NOT :known_only::boolean OR @lane_is_known)

-- part: lane_fields [postgres]
-- The fields of a lane as the snapshot has it. A lane that was asleep is in line since it woke.
lane.id, lane.queue, lane.buckets, lane.waiting,
coalesce(lane.since, (SELECT limit_now - now FROM instant) + lane.wakes_at), lane.behind, lane.wakes_at,
lane.wait_mode, lane.opened_at, lane.virtual_time, lane.version, lane.group_id

-- part: lane_fields [sqlite]
lane.id, lane.queue, CAST(lane.buckets AS text), lane.waiting, coalesce(lane.since, :limit_now - :now + lane.wakes_at),
lane.behind, lane.wakes_at, lane.wait_mode, lane.opened_at, lane.virtual_time, 0, lane.group_id

-- part: lanes_of_group
-- How many lanes to read of a group in line: all that the first one can use, half as many of the second one, …. A visit
-- starts a quantum of a lane's jobs. Once the first lanes of the groups before have enough jobs, no group is needed any more.
CASE
    WHEN NOT is_needed THEN 0
    WHEN count(*) FILTER (WHERE is_needed) OVER (PARTITION BY queue) = count(*) OVER (PARTITION BY queue)
        THEN 1 + :lanes::integer / number
    ELSE 1 + count(*) FILTER (WHERE is_needed) OVER (PARTITION BY queue) / number
END

-- part: instant
-- The time of the server, or the time that the caller passes.
instant AS MATERIALIZED (
    SELECT
        coalesce(:now::bigint, @server_clock) AS now,
        coalesce(:limit_now::bigint, @server_clock + ahead) AS limit_now,
        ahead,
        @server_clock AS began
    FROM headgate.limit_time
)

-- name: claim_snapshot [postgres]
-- The state that a claim starts from, read without locks: opened buckets with lanes behind them, lanes that are due, the
-- heads of the lanes without buckets (`open_lanes`, one for each of `queues`), and the next timers.
-- Reading begins at the low watermarks (`_floor`), and in a lane at its front, or at the lowest rank of its arrivals: below
-- these there are dead rows.
-- :known_only leaves out lanes that this node cannot claim from. With {no join}, lanes are looked up for each
-- row: a join may read all of them.
WITH @instant,
open AS MATERIALIZED (
    SELECT
        named.lane, number, newest.version,
        least(
            coalesce(newest.front, @lowest_rank),
            (
                SELECT min(coalesce(arrival.rank, @lowest_rank)) FROM headgate.arrival
                WHERE @arrived_in(named.lane, :arrival_floor::bigint) AND is_ready
            )
        ) AS front
    FROM unnest(:open_lanes::text[]) WITH ORDINALITY AS named (lane, number)
    LEFT JOIN LATERAL (
        SELECT version, front FROM headgate.lane WHERE lane.id = named.lane ORDER BY version DESC LIMIT 1
    ) AS newest ON true
)
SELECT
    now,
    limit_now,
    ahead,
    EXISTS (SELECT 1 FROM headgate.node WHERE id = :node AND gone IS NULL) AS has_joined,
    (SELECT coalesce(json_agg(queue), '[]') FROM headgate.paused_queue) AS paused,
    (SELECT revision FROM headgate.limit_revision) AS revision,
    -- At most as many as a merge takes are read. Beyond them may be some of these queues.
    EXISTS (
        SELECT 1
        FROM (
            SELECT queue, buckets FROM headgate.arrival
            WHERE id >= :arrival_floor::bigint
            ORDER BY id
            LIMIT :merged_at_once::bigint
        ) AS first
        WHERE queue = ANY(:queues::text[]) AND buckets <> '[]'
    )
    OR EXISTS (
        SELECT 1 FROM headgate.arrival WHERE id >= :arrival_floor::bigint ORDER BY id OFFSET :merged_at_once::bigint
    ) AS has_arrivals,
    EXISTS (SELECT 1 FROM headgate.replacement_note) AS has_notes,
    EXISTS (
        SELECT 1
        FROM (
            (
                SELECT lane, expires_at AS late_at FROM headgate.job
                WHERE waiting AND expires_at IS NOT NULL
                ORDER BY expires_at
                LIMIT 10
            )
            UNION ALL
            (
                SELECT lane, give_up_at FROM headgate.job
                WHERE waiting AND give_up_at IS NOT NULL
                ORDER BY give_up_at
                LIMIT 10
            )
        ) AS next
        WHERE late_at <= now AND lane = ANY(:open_lanes::text[])
    ) AS has_expired,
    (
        SELECT coalesce(json_agg(json_build_array(id, limit_name, key, state, opens_at, closed_until)), '[]')
        FROM (
            SELECT * FROM headgate.bucket
            WHERE opens_at <= (SELECT limit_now FROM instant) AND opens_at >= :opened_floor::bigint
                AND limit_name = ANY(:limits::text[])
                AND EXISTS (
                    SELECT 1 FROM headgate.lane
                    WHERE behind = bucket.id AND queue = ANY(:queues::text[]) AND @is_wanted
                    {no join}
                )
            ORDER BY opens_at
            LIMIT :lanes::integer
        ) AS opened
    ) AS opened,
    (
        SELECT coalesce(json_agg(json_build_array(@lane_fields)), '[]')
        FROM unnest(:queues::text[], :due_floors::bigint[]) AS named (name, due_floor)
        CROSS JOIN LATERAL (
            SELECT * FROM headgate.lane
            WHERE queue = named.name AND gated AND behind IS NULL AND since IS NOT NULL AND group_id IS NULL
                AND lane.place >= named.due_floor AND @is_wanted
            ORDER BY lane.place, since, id
            LIMIT :in_line::integer
        ) AS lane
    ) AS due,
    -- The lanes of the first groups in line.
    (
        SELECT coalesce(json_agg(json_build_array(@lane_fields, most)), '[]')
        FROM unnest(:queues::text[]) AS named
        CROSS JOIN LATERAL (
            SELECT group_id, @lanes_of_group AS most
            FROM (
                SELECT
                    first.id AS group_id, named AS queue, row_number() OVER line AS number,
                    coalesce(
                        sum(greatest(1, least(lane.waiting, :quantum::integer)))
                            OVER (line ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0
                    ) < :enough::integer AS is_needed
                FROM (
                    SELECT id, virtual_time FROM headgate.turn_group
                    WHERE queue = named AND in_line
                        AND EXISTS (
                            SELECT 1 FROM headgate.lane
                            WHERE lane.group_id = turn_group.id AND behind IS NULL AND since IS NOT NULL AND @is_wanted
                            {no join}
                        )
                    ORDER BY virtual_time, id
                    LIMIT :lanes::integer
                ) AS first
                CROSS JOIN LATERAL (
                    SELECT waiting FROM headgate.lane
                    WHERE lane.group_id = first.id AND behind IS NULL AND since IS NOT NULL AND @is_wanted
                    ORDER BY lane.place, since, id
                    LIMIT 1
                ) AS lane
                WINDOW line AS (ORDER BY first.virtual_time, first.id)
            ) AS numbered
        ) AS line
        CROSS JOIN LATERAL (
            SELECT * FROM headgate.lane
            WHERE lane.group_id = line.group_id AND behind IS NULL AND since IS NOT NULL AND @is_wanted
            ORDER BY lane.place, since, id
            LIMIT line.most
        ) AS lane
    ) AS grouped,
    (
        SELECT coalesce(json_agg(json_build_array(@lane_fields)), '[]')
        FROM unnest(:queues::text[]) AS named
        CROSS JOIN LATERAL (
            SELECT * FROM headgate.lane
            WHERE queue = named AND gated AND since IS NULL AND wakes_at <= (SELECT now FROM instant) AND @is_wanted
            ORDER BY wakes_at
            LIMIT :lanes::integer
        ) AS lane
    ) AS woken,
    (
        SELECT
            coalesce(
                json_agg(
                    json_build_array(ready, due, next_wake, unknown, due_unknown, first, front, version) ORDER BY number
                ),
                '[]'
            )
        FROM open
        CROSS JOIN LATERAL (
            SELECT
                -- Of jobs that the node may start, as many as of all, however many others are before them.
                CASE WHEN bool_or(NOT limit_set = ANY(@known)) THEN (
                    SELECT count(*)
                    FROM (
                        SELECT FROM headgate.job
                        WHERE job.lane = open.lane AND waiting AND NOT delayed AND rank >= open.front
                            AND limit_set = ANY(@known)
                        ORDER BY rank, id
                        LIMIT :count::integer
                    ) AS known
                ) ELSE count(*) END AS ready,
                coalesce(json_agg(json_build_array(id, task)) FILTER (WHERE NOT limit_set = ANY(@known)), '[]') AS unknown,
                min(rank) AS first
            FROM (
                SELECT id, task, limit_set, rank FROM headgate.job
                WHERE job.lane = open.lane AND waiting AND NOT delayed AND rank >= open.front
                ORDER BY rank, id
                LIMIT :count::integer
            ) AS first
        ) AS plain
        CROSS JOIN LATERAL (
            SELECT
                sum(due_jobs.due)::bigint AS due, min(next.run_at) AS next_wake,
                coalesce(json_agg(due_jobs.unknown) FILTER (WHERE due_jobs.unknown IS NOT NULL), '[]') AS due_unknown
            FROM @levels
            LEFT JOIN LATERAL (
                SELECT
                    CASE WHEN bool_or(NOT limit_set = ANY(@known)) THEN (
                        SELECT count(*)
                        FROM (
                            SELECT FROM headgate.job
                            WHERE job.lane = open.lane AND waiting AND delayed AND job.priority = level.priority
                                AND run_at <= (SELECT now FROM instant) AND limit_set = ANY(@known)
                            ORDER BY run_at, id
                            LIMIT :count::integer
                        ) AS known
                    ) ELSE count(*) END AS due,
                    json_agg(json_build_array(id, task)) FILTER (WHERE NOT limit_set = ANY(@known)) AS unknown
                FROM (
                    SELECT id, task, limit_set FROM headgate.job
                    WHERE job.lane = open.lane AND waiting AND delayed AND job.priority = level.priority
                        AND run_at <= (SELECT now FROM instant)
                    LIMIT :count::integer
                ) AS first
            ) AS due_jobs ON true
            LEFT JOIN LATERAL (
                SELECT run_at FROM headgate.job
                WHERE job.lane = open.lane AND waiting AND delayed AND job.priority = level.priority AND run_at > (SELECT now FROM instant)
                ORDER BY run_at
                LIMIT 1
            ) AS next ON true
        ) AS delayed
    ) AS ungated,
    (SELECT min(opens_at) FROM headgate.bucket WHERE opens_at > (SELECT limit_now FROM instant)) AS next_bucket,
    (
        SELECT min(earliest)
        FROM unnest(:queues::text[]) AS named
        CROSS JOIN LATERAL (
            SELECT min(wakes_at) AS earliest FROM headgate.lane
            WHERE queue = named AND gated AND since IS NULL AND wakes_at > (SELECT now FROM instant)
        ) AS asleep
    ) AS next_wake,
    -- Columns are evaluated in order, so this one comes after all reads.
    @server_clock - began AS took
FROM instant

-- name: claim_snapshot [sqlite]
-- Lanes without buckets are returned as rows: their counts are exact, and `heads` reads their jobs. Paused queues are left
-- out here.
WITH named AS MATERIALIZED (
    SELECT value AS queue FROM json_each(:queues) WHERE value NOT IN (SELECT queue FROM paused_queue)
)
SELECT
    :now AS now,
    :limit_now AS limit_now,
    EXISTS (SELECT 1 FROM node WHERE id = :node) AS has_joined,
    (SELECT json_group_array(queue) FROM paused_queue) AS paused,
    (SELECT revision FROM limit_revision) AS revision,
    (
        SELECT json_group_array(json_array(id, limit_name, key, state, opens_at, closed_until))
        FROM (
            SELECT * FROM bucket
            WHERE opens_at <= :limit_now
                AND +limit_name IN (SELECT value FROM json_each(:limits))
                AND EXISTS (
                    SELECT 1 FROM lane
                    WHERE behind = bucket.id AND queue IN (SELECT queue FROM named) AND @is_wanted
                )
            ORDER BY opens_at
            LIMIT :lanes
        )
    ) AS opened,
    (
        SELECT json_group_array(json_array(@lane_fields))
        FROM named
        CROSS JOIN lane ON lane.id IN (
            SELECT id FROM lane
            WHERE queue = named.queue AND gated AND behind IS NULL AND since IS NOT NULL AND group_id IS NULL
                AND @is_wanted
            ORDER BY lane.place, since, id
            LIMIT :lanes
        )
    ) AS due,
    (
        SELECT json_group_array(json_array(@lane_fields, most))
        FROM (
            SELECT id, @lanes_of_group AS most
            FROM (
                SELECT
                    id, queue, row_number() OVER line AS number,
                    coalesce(
                        sum(max(1, min(waiting, :quantum))) OVER (line ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0
                    ) < :enough AS is_needed
                FROM (
                    SELECT
                        line.id, named.queue, line.virtual_time,
                        (
                            SELECT waiting FROM lane
                            WHERE lane.group_id = line.id AND behind IS NULL AND since IS NOT NULL AND @is_wanted
                            ORDER BY lane.place, since, id
                            LIMIT 1
                        ) AS waiting
                    FROM named
                    CROSS JOIN turn_group AS line ON line.id IN (
                        SELECT id FROM turn_group
                        WHERE queue = named.queue AND in_line
                            AND EXISTS (
                                SELECT 1 FROM lane
                                WHERE lane.group_id = turn_group.id AND behind IS NULL AND since IS NOT NULL
                                    AND @is_wanted
                            )
                        ORDER BY virtual_time, id
                        LIMIT :lanes
                    )
                ) AS first
                WINDOW line AS (PARTITION BY queue ORDER BY virtual_time, id)
            ) AS numbered
        ) AS line
        CROSS JOIN lane ON lane.id IN (
            SELECT id FROM (
                SELECT id, row_number() OVER (ORDER BY lane.place, since, id) AS number FROM lane
                WHERE lane.group_id = line.id AND behind IS NULL AND since IS NOT NULL AND @is_wanted
                ORDER BY lane.place, since, id
                LIMIT :lanes + 1
            )
            WHERE number <= line.most
        )
        WHERE line.most > 0
    ) AS grouped,
    (
        SELECT json_group_array(json_array(@lane_fields))
        FROM named
        CROSS JOIN lane ON lane.id IN (
            SELECT id FROM lane
            WHERE queue = named.queue AND gated AND since IS NULL AND wakes_at <= :now AND @is_wanted
            ORDER BY wakes_at
            LIMIT :lanes
        )
    ) AS woken,
    (
        -- A lane that is asleep is in no line.
        SELECT json_group_array(json_array(id, lane.queue, '[]', waiting, since, behind, wakes_at, wait_mode, opened_at))
        FROM named
        CROSS JOIN lane ON lane.id IN (
            SELECT id FROM lane WHERE queue = named.queue AND buckets = '[]' AND wait_mode = '' AND waiting > 0
        )
    ) AS open,
    (SELECT min(opens_at) FROM bucket WHERE opens_at > :limit_now) AS next_bucket,
    (
        SELECT min(earliest)
        FROM (
            SELECT (
                SELECT min(wakes_at) FROM lane WHERE queue = named.queue AND since IS NULL AND wakes_at > :now
            ) AS earliest
            FROM named
        )
    ) AS next_wake

-- part: group_behind(which, queue)
(SELECT $which(group_id) FROM headgate.lane WHERE behind = granting.bucket AND queue = $queue AND group_id IS NOT NULL)

-- part: has_lanes_behind(queue)
turn_group.queue = $queue AND EXISTS (
    SELECT 1 FROM headgate.lane
    WHERE behind = granting.bucket AND queue = $queue AND lane.group_id = turn_group.id AND @is_wanted
    {no join}
)

-- part: groups_behind(queue)
-- The first groups of a queue with lanes behind a bucket. If there are up to 100, they are found by their lanes: in the order
-- of turns, all others of the queue may be before them.
WITH RECURSIVE known (id, number) AS (
    SELECT @group_behind(min, $queue), 1
    UNION ALL
    SELECT
        (SELECT min(group_id) FROM headgate.lane WHERE behind = granting.bucket AND queue = $queue AND group_id > known.id),
        number + 1
    FROM known
    WHERE id IS NOT NULL AND number <= 100
),
candidate AS (
    SELECT id FROM (SELECT turn_group.id FROM known @looked_up(
        turn_group, number > 100 AND known.id IS NOT NULL AND @has_lanes_behind($queue) ORDER BY virtual_time LIMIT :most::integer
    )) AS first
    UNION
    SELECT id FROM known
)
SELECT turn_group.id, row_number() OVER (ORDER BY virtual_time, turn_group.id) AS number
FROM candidate @looked_up(turn_group, turn_group.id = candidate.id)
WHERE @has_lanes_behind($queue)
ORDER BY virtual_time, turn_group.id
LIMIT :most::integer

-- part: last_behind
-- The highest turn behind a bucket in a fair queue: of lanes or, as the lanes of a group have turns of their own, of two groups.
CASE WHEN highest IS NULL THEN NULL WHEN @group_behind(min, named.queue) IS NULL
    THEN (SELECT max(lane.place) FROM headgate.lane WHERE behind = granting.bucket AND queue = named.queue AND group_id IS NULL)
    ELSE (SELECT max(virtual_time) FROM headgate.turn_group
        WHERE id IN (@group_behind(min, named.queue), @group_behind(max, named.queue)))
END

-- name: behind [postgres]
-- The first lanes of each queue behind each opened bucket, as many as the bucket grants: those without a group, and those of
-- each group. With OFFSET 0, the last turn is read once, not for each lane.
WITH instant AS MATERIALIZED (SELECT :now::bigint AS now),
named AS MATERIALIZED (
    SELECT each.queue, @highest_so_far(each.queue) AS highest FROM unnest(:queues::text[]) AS each (queue)
)
SELECT lane.id, lane.queue, buckets, waiting, since, behind, wakes_at, wait_mode, opened_at, virtual_time, version, group_id,
    0 AS group_most, front, highest, last_behind
FROM {rows:granting(bucket text, grants integer)}
CROSS JOIN named
CROSS JOIN LATERAL (SELECT @last_behind AS last_behind OFFSET 0) AS once
CROSS JOIN LATERAL (
    (
        SELECT * FROM headgate.lane
        WHERE behind = granting.bucket AND queue = named.queue AND group_id IS NULL AND @is_wanted
        ORDER BY group_id, lane.place, since, id
        LIMIT granting.grants
    )
    UNION ALL
    SELECT lane.*
    FROM (@groups_behind(named.queue)) AS line
    CROSS JOIN LATERAL (
        SELECT * FROM headgate.lane
        WHERE behind = granting.bucket AND queue = named.queue AND lane.group_id = line.id AND @is_wanted
        ORDER BY lane.place, since, id
        LIMIT 1 + granting.grants / line.number
    ) AS lane
) AS lane

-- name: behind [sqlite]
-- At most :most lanes of each queue and bucket.
WITH named AS MATERIALIZED (
    SELECT each.value AS queue, @highest_so_far(each.value) AS highest FROM json_each(:queues) AS each
)
SELECT
    lane.id, lane.queue, buckets, waiting, since, behind, wakes_at, wait_mode, opened_at, virtual_time, 0 AS version,
    group_id, 0 AS group_most, @lowest_rank AS front, highest, @last_behind AS last_behind
FROM {rows:granting(bucket text, grants integer)}
CROSS JOIN named
CROSS JOIN lane ON lane.id IN (
    SELECT id FROM (
        SELECT id FROM lane
        WHERE behind = granting.bucket AND queue = named.queue AND group_id IS NULL AND @is_wanted
        ORDER BY lane.place, since, id
        LIMIT :most
    )
    UNION ALL
    SELECT first.id
    FROM (@groups_behind(named.queue)) AS line
    CROSS JOIN lane AS first ON first.id IN (
        SELECT id FROM (
            SELECT id, row_number() OVER (ORDER BY lane.place, since, id) AS number FROM lane
            WHERE behind = granting.bucket AND queue = named.queue AND lane.group_id = line.id AND @is_wanted
            ORDER BY lane.place, since, id
            LIMIT :most + 1
        ) AS member
        WHERE member.number <= 1 + :most / line.number
    )
)

-- part: is_free
-- Whether the job is in `free`, so that it can be written. Not a join, nor a condition that the planner can make one:
-- lists are planned as few rows, so each row would be compared with each other one.
(job.id IN (SELECT id FROM free)) IS TRUE

-- part: live_node
-- The claiming node, locked so that no other node declares it dead while it takes jobs: no other node would take
-- them back.
live_node AS MATERIALIZED (
    SELECT id FROM headgate.node WHERE id = :node AND gone IS NULL FOR KEY SHARE
)

-- name: lock_for_claim [postgres]
-- Lock the claiming node and these buckets, in the order of their ids; then add, in the same order, those that have no
-- row. Returns them with the time of that, without those that another transaction has added meanwhile.
WITH @live_node,
locked AS MATERIALIZED (
    SELECT bucket.id, limit_name, key, state, opens_at, closed_until, @server_clock AS locked_at
    FROM live_node
    CROSS JOIN LATERAL (
        SELECT * FROM @locked_buckets AS each
    ) AS bucket
),
missing AS MATERIALIZED (
    SELECT target.id, limit_name, key
    FROM live_node
    CROSS JOIN {rows:target(id text, limit_name text, key text)}
    WHERE (target.id IN (SELECT id FROM locked)) IS NOT TRUE
),
new AS (
    INSERT INTO headgate.known_bucket (id)
    SELECT id FROM missing ORDER BY id
    ON CONFLICT (id) DO NOTHING
    RETURNING id
),
added AS (
    INSERT INTO headgate.bucket (id, version, limit_name, key, idle_at)
    SELECT id, @server_clock >> 20, limit_name, key, :limit_now::bigint
    FROM missing
    WHERE (id IN (SELECT id FROM new)) IS TRUE
    RETURNING id, limit_name, key, state, opens_at, closed_until
)
SELECT
    id, limit_name AS "limit", key, state, opens_at, closed_until, locked_at,
    (SELECT ahead FROM headgate.limit_time) AS ahead
FROM (
    SELECT id, limit_name, key, state, opens_at, closed_until, locked_at FROM locked
    UNION ALL
    SELECT id, limit_name, key, state, opens_at, closed_until, @server_clock FROM added
) AS bucket

-- name: lock_claiming_node [postgres]
-- Lock the claiming node alone, for lanes of fair queues that use no bucket.
WITH @live_node
SELECT id, @server_clock AS locked_at, (SELECT ahead FROM headgate.limit_time) AS ahead FROM live_node

-- name: turn_groups
SELECT id, virtual_time, @lowest_in_group(turn_group.id) AS first, @highest_in_group(turn_group.id) AS last
FROM headgate.turn_group
WHERE id {any:ids text}

-- name: lock_turn_groups [postgres]
-- Lock those of these groups that no other transaction has locked, before their lanes.
SELECT id, virtual_time, @lowest_in_group(turn_group.id) AS first, @highest_in_group(turn_group.id) AS last
FROM headgate.turn_group
WHERE id {any:ids text}
ORDER BY id
FOR UPDATE SKIP LOCKED

-- name: write_virtual_times
-- Write the virtual times of groups after a claim has written their lanes. A group is in line while one of its lanes is.
UPDATE headgate.turn_group
SET version = version + 1, virtual_time = written.virtual_time, in_line = (
    SELECT 1 FROM headgate.lane WHERE lane.group_id = turn_group.id AND behind IS NULL AND since IS NOT NULL LIMIT 1
) IS NOT NULL
FROM {rows:written(id text, virtual_time bigint)}
WHERE @by_key(turn_group.id, written.id)

-- name: lock_lanes [postgres]
-- Lock the first of these lanes that are still due, behind an opened bucket or awake, so many of each queue, unless another
-- client has locked them; and return the revision of the settings, which cannot change while the node is locked. No version
-- is older than the one that the snapshot has. In a snapshot that is not fresh, a lane that has moved since has had its turn.
SELECT revision, held.*
FROM headgate.limit_revision
LEFT JOIN (
    SELECT first.*
    FROM {rows:most(queue text, lanes bigint)}
    CROSS JOIN LATERAL (
        SELECT locked.*
        FROM {rows:seen(id text, queue text, version bigint, since bigint)}
        CROSS JOIN LATERAL (
            SELECT id, version, waiting, since, behind, wakes_at, opened_at, virtual_time, front
            FROM headgate.lane
            WHERE lane.id = seen.id AND lane.version >= seen.version
                AND (
                    (behind IS NULL AND since IS NOT NULL)
                    OR behind {any:opened text}
                    OR (since IS NULL AND wakes_at <= :now)
                )
                AND queue NOT IN (SELECT queue FROM headgate.paused_queue)
                AND (:is_fresh::boolean OR lane.since IS NOT DISTINCT FROM seen.since)
            ORDER BY version DESC
            LIMIT 1
            FOR UPDATE SKIP LOCKED
        ) AS locked
        WHERE seen.queue = most.queue
        LIMIT most.lanes
    ) AS first
) AS held ON true

-- part: head(payload)
-- The columns of a job that a claim reads. SQLite stores values of any type in a column, so it reads the payload as text.
job.id, job.lane, job.task, job.queue, $payload, job.rank, job.run_at, job.attempt, job.fence, job.lost,
job.enqueued_at, job.expires_at, job.costs, job.headers, job.options, job.origin, job.terms, job.held, job.passed, job.give_up_at,
job.annotations, CASE WHEN (job.held | job.passed) <> 0 THEN job.buckets END AS buckets, job.limit_set

-- part: not_locked [postgres]
-- Whether a job is not one that this process has found locked, by lane, id and fence.
(cardinality(:locked::text[]) = 0 OR job.lane || ':' || id || ':' || fence <> ALL(:locked))

-- part: not_locked [sqlite]
true

-- name: heads [postgres]
-- The first jobs of each lane that requested no start time, from its floor on.
SELECT @head(job.payload)
FROM {rows:visited(lane text, floor bigint)}
CROSS JOIN LATERAL (
    SELECT * FROM headgate.job
    WHERE job.lane = visited.lane AND waiting AND NOT delayed AND rank >= visited.floor AND @not_locked
    ORDER BY rank, id
    LIMIT :count::integer
) AS job

-- name: heads [sqlite]
SELECT @head(CAST(job.payload AS text) AS payload)
FROM json_each(:lanes) AS visited
CROSS JOIN job ON job.rowid IN (
    SELECT rowid FROM job
    WHERE lane = visited.value AND waiting AND NOT delayed
    ORDER BY rank, rowid
    LIMIT :count
)

-- name: heads_ready [postgres]
-- The first ready jobs of each lane, with delayed jobs that are due: of all limit sets with :all, else of limit sets that the node
-- may start.
SELECT @head(job.payload)
FROM unnest(:lanes::text[]) AS visited (lane)
CROSS JOIN LATERAL (
    SELECT * FROM (
        SELECT * FROM headgate.job
        WHERE job.lane = visited.lane AND waiting AND NOT delayed AND (:all::boolean OR limit_set = ANY(@known)) AND @not_locked
        ORDER BY rank, id
        LIMIT :count::integer
    ) AS plain
    UNION ALL
    SELECT due.*
    FROM @levels
    CROSS JOIN LATERAL (
        SELECT * FROM headgate.job
        WHERE job.lane = visited.lane AND waiting AND delayed AND job.priority = level.priority AND run_at <= :now
            AND (:all::boolean OR limit_set = ANY(@known)) AND @not_locked
        ORDER BY run_at, id
        LIMIT :count::integer
    ) AS due
) AS job

-- name: heads_ready [sqlite]
SELECT @head(CAST(job.payload AS text) AS payload)
FROM json_each(:lanes) AS visited
CROSS JOIN job ON job.rowid IN (
    SELECT rowid FROM (
        SELECT rowid FROM job
        WHERE lane = visited.value AND waiting AND NOT delayed AND (:all OR limit_set {any:known_json text})
        ORDER BY rank, rowid
        LIMIT :count
    )
    UNION ALL
    SELECT due.rowid
    FROM @levels
    CROSS JOIN job AS due ON due.rowid IN (
        SELECT rowid FROM job
        WHERE lane = visited.value AND waiting AND delayed AND job.priority = level.priority AND run_at <= :now
            AND (:all OR limit_set {any:known_json text})
        ORDER BY run_at, rowid
        LIMIT :count
    )
)

-- part: unchanged_node
-- As live_node, but no row if the revision of settings and newest limit sets has changed, or if a queue is paused. A
-- transaction that changes settings waits for the lock of the node.
live_node AS MATERIALIZED (
    SELECT id FROM headgate.node
    WHERE id = :node AND gone IS NULL AND (SELECT revision FROM headgate.limit_revision) = :revision
        AND NOT EXISTS (SELECT 1 FROM headgate.paused_queue WHERE queue = ANY(:queues::text[]))
    FOR KEY SHARE
)

-- part: kept_claim
kept AS (
    INSERT INTO headgate.claim (node, at, jobs) SELECT :node, :now, array_agg(id) FROM taken HAVING count(*) > 0
)

-- part: left_lanes
-- An arrival lowers the count of a lane, so that nodes that claim at the same time do not wait for each other.
left_lanes AS (
    INSERT INTO headgate.arrival (lane, queue, buckets, wait_mode, jobs, is_ready, since)
    SELECT lane, queue, '[]', '', -count(*), false, :limit_now FROM taken GROUP BY lane, queue
)

-- part: started
-- What follows from the start of a waiting job on the node.
state = 'running', waiting = false, node = :node, started_at = :now, attempt = job.attempt + 1, fence = job.fence + 1,
holds_key = job.unique_key IS NOT NULL, cancel_requested = false, charged_at = :limit_now

-- name: take_ungated [postgres]
-- Start waiting jobs without limits on the node: the first `most` of each lane, from its floor on.
-- The ids are an array, not a join: the planner expects few rows and uses the primary key, whatever the statistics say.
WITH @unchanged_node,
taken AS (
    UPDATE headgate.job
    SET @started, uncharged = held | passed
    WHERE job.id = ANY(
        ARRAY(
            SELECT first.id
            FROM live_node
            CROSS JOIN {rows:visited(lane text, most integer, floor bigint)}
            CROSS JOIN LATERAL (
                SELECT id FROM headgate.job AS first
                WHERE first.lane = visited.lane AND waiting AND NOT delayed AND rank >= visited.floor
                    AND limit_set = ANY(@known) AND (expires_at IS NULL OR expires_at > :now)
                    AND (give_up_at IS NULL OR give_up_at > :now)
                ORDER BY rank, id
                LIMIT visited.most
                FOR UPDATE SKIP LOCKED
            ) AS first
        )
    )
    RETURNING @head(job.payload)
),
@kept_claim,
@left_lanes
SELECT * FROM taken

-- name: take_ungated_due [postgres]
-- As take_ungated, with delayed jobs that are due.
WITH @unchanged_node,
candidate AS (
    SELECT first.id, first.lane, first.rank
    FROM live_node
    CROSS JOIN unnest(:visited.lane::text[], :visited.most::integer[]) AS visited (visited_lane, most)
    CROSS JOIN LATERAL (
        SELECT * FROM (
            SELECT id, lane, rank FROM headgate.job
            WHERE job.lane = visited_lane AND waiting AND NOT delayed AND limit_set = ANY(@known)
                AND (expires_at IS NULL OR expires_at > :now) AND (give_up_at IS NULL OR give_up_at > :now)
            ORDER BY rank, id
            LIMIT most
            FOR UPDATE SKIP LOCKED
        ) AS plain
        UNION ALL
        SELECT due.*
        FROM @levels
        CROSS JOIN LATERAL (
            SELECT id, lane, rank FROM headgate.job
            WHERE job.lane = visited_lane AND waiting AND delayed AND job.priority = level.priority AND run_at <= :now
                AND limit_set = ANY(@known) AND (expires_at IS NULL OR expires_at > :now) AND (give_up_at IS NULL OR give_up_at > :now)
            ORDER BY run_at, id
            LIMIT most
            FOR UPDATE SKIP LOCKED
        ) AS due
    ) AS first
),
chosen AS (
    SELECT first.id
    FROM {rows:visited(lane text, most integer, floor bigint)}
    CROSS JOIN LATERAL (
        SELECT id FROM candidate WHERE candidate.lane = visited.lane ORDER BY rank, id LIMIT most
    ) AS first
),
taken AS (
    UPDATE headgate.job
    SET @started, uncharged = held | passed
    WHERE job.id = ANY(ARRAY(SELECT id FROM chosen))
    RETURNING @head(job.payload)
),
@kept_claim,
@left_lanes
SELECT * FROM taken

-- part: first_delayed(which)
-- When the first of these delayed jobs of a lane is due.
(
    SELECT min(run_at)
    FROM (
        SELECT (
            SELECT run_at FROM headgate.job
            WHERE job.lane = named.lane AND waiting AND delayed AND job.priority = level.priority AND $which
            ORDER BY run_at
            LIMIT 1
        ) AS run_at
        FROM @levels
    ) AS first
)

-- name: left_in_lanes
-- The jobs left in these lanes without those in :leaving and the locked ones: whether one requested no start time, when the
-- first delayed job is due, and, if no job of the lane could start, when the first is that is not due yet.
SELECT
    named.lane,
    EXISTS (
        SELECT 1 FROM headgate.job
        WHERE job.lane = named.lane AND waiting AND NOT delayed AND rank >= named.front AND NOT id {any:leaving job_id}
            AND @not_locked
    ) AS has_ready,
    @first_delayed(NOT id {any:leaving job_id} AND @not_locked) AS earliest,
    CASE WHEN named.is_idle THEN @first_delayed(run_at > :now) END AS next_due
FROM {rows:named(lane text, front bigint, is_idle boolean)}

-- name: write_claim [postgres]
-- Write a claim of gated jobs: charge buckets, move lanes and start jobs on the node. Returns the jobs that were started.
-- The claim is valid only if these are all: each job still waits in the lane in which it was read, is unchanged, and is
-- not locked by another transaction. That may be a user's transaction, which no claim may wait for.
WITH charge AS (
    UPDATE headgate.bucket SET @raise_version state = target.state, idle_at = target.idle_at
    FROM (SELECT * FROM {rows:charged(id text, state text, idle_at bigint)}) AS target
    @newest_bucket
    WHERE @is_newest
),
move AS (
    UPDATE headgate.lane
    SET version = lane.version + 1, waiting = lane.waiting - moved.removed, since = moved.since, behind = moved.behind,
        wakes_at = moved.wakes_at, opened_at = moved.opened_at, virtual_time = moved.virtual_time, front = moved.front
    FROM {rows:moved(
        id text, version bigint, removed integer, since bigint, behind text, wakes_at bigint, opened_at bigint, virtual_time bigint,
        front bigint
    )}
    WHERE @by_key(lane.id, moved.id) AND lane.version = moved.version
),
kept AS (
    INSERT INTO headgate.claim (node, at, jobs)
    SELECT :node, :now, :starting.id::bigint[] WHERE cardinality(:starting.id::bigint[]) > 0
),
free AS (
    SELECT id FROM headgate.job WHERE id = ANY(:starting.id::bigint[]) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE headgate.job
SET @started, held = starting.held, uncharged = starting.uncharged,
    deferrals = CASE WHEN starting.is_deferred THEN coalesce(job.deferrals, 0) + 1 ELSE job.deferrals END
FROM {rows:starting(id job_id, lane text, fence integer, held bigint, uncharged bigint, is_deferred boolean)}
WHERE @by_key(job.id, starting.id) AND job.lane = starting.lane AND job.fence = starting.fence AND job.state = 'waiting'
    AND @is_free
RETURNING job.id

-- name: start_jobs [sqlite]
-- Start jobs without terms on the node. SQLite writes one table a statement; `charge` writes the buckets.
UPDATE job
SET @started,
    deferrals = CASE WHEN id {any:deferred job_id} THEN coalesce(deferrals, 0) + 1 ELSE deferrals END
WHERE id {any:ids job_id} AND +waiting

-- name: start_with_terms [sqlite]
-- As start_jobs, for jobs with terms: they may hold permits, or be exempt from some of their buckets.
UPDATE job
SET @started, held = starting.held, uncharged = starting.uncharged,
    deferrals = CASE WHEN starting.is_deferred THEN coalesce(job.deferrals, 0) + 1 ELSE job.deferrals END
FROM {rows:starting(id job_id, lane text, fence integer, held bigint, uncharged bigint, is_deferred boolean)}
WHERE job.id = starting.id AND +waiting

-- name: move_lanes [sqlite]
-- Write lanes after a claim.
UPDATE lane
SET waiting = lane.waiting - moved.removed, since = moved.since, behind = moved.behind, wakes_at = moved.wakes_at,
    opened_at = moved.opened_at, virtual_time = moved.virtual_time
FROM {rows:moved(id text, removed integer, since bigint, behind text, wakes_at bigint, opened_at bigint, virtual_time bigint)}
WHERE lane.id = moved.id

-- name: release_batch_lanes
-- Release the lanes of a batch that holds a permit: they no longer wait behind its bucket, which is locked. They are put in
-- line at the present time, not at that since when they wait: claims may have passed it. Lanes of fair queues are visited
-- by the next claim, which gives them a virtual time and puts their group in line.
UPDATE headgate.lane
SET behind = NULL, opened_at = :limit_now::bigint, since = CASE WHEN virtual_time IS NULL THEN :limit_now::bigint END,
    wakes_at = CASE WHEN virtual_time IS NULL THEN wakes_at ELSE {least}(coalesce(wakes_at, :now), :now) END
FROM {rows:released(bucket text, batch text)}
WHERE @by_key(lane.behind, released.bucket) AND {position}(lane.wait_mode, released.batch) > 0

-- name: lockable [postgres]
-- Lock those of these jobs that no other transaction has locked, and return them.
SELECT id FROM headgate.job WHERE id {any:ids job_id} ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
