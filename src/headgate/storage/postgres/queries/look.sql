-- What a claim starts from, without any lock: opened buckets with lanes behind them, lanes that are due, the heads of
-- the lanes without draws (`open_lanes`, one for each of `queues`), and the next timers.
-- The floors are where to begin reading what is worn at its front; 0 is the start.
-- :known_only leaves out the lanes that this node could do nothing with.
WITH @instant
SELECT
    now,
    limit_now,
    ahead,
    EXISTS (SELECT 1 FROM headgate.node WHERE id = :node AND gone IS NULL) AS has_joined,
    ARRAY(SELECT queue FROM headgate.paused_queue) AS paused,
    (SELECT revision FROM headgate.limit_revision) AS revision,
    EXISTS (SELECT 1 FROM headgate.arrival WHERE draws <> '[]' AND queue = ANY(:queues::text[])) AS has_arrivals,
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
                    WHERE behind = bucket.id AND queue = ANY(:queues::text[])
                        AND (NOT :known_only::boolean OR (@lane_is_known))
                )
            ORDER BY opens_at
            LIMIT :count::integer
        ) AS opened
    ) AS opened,
    (
        SELECT coalesce(json_agg(@lane_row), '[]')
        FROM unnest(:queues::text[]) AS wanted
        CROSS JOIN LATERAL (
            SELECT * FROM headgate.lane
            WHERE queue = wanted AND gated AND behind IS NULL AND since >= :due_floor::bigint
                AND (NOT :known_only::boolean OR (@lane_is_known))
            ORDER BY since, id
            LIMIT :count::integer
        ) AS lane
    ) AS due,
    (
        SELECT coalesce(json_agg(@lane_row), '[]')
        FROM unnest(:queues::text[]) AS wanted
        CROSS JOIN LATERAL (
            SELECT * FROM headgate.lane
            WHERE queue = wanted AND gated AND since IS NULL AND wakes_at <= (SELECT now FROM instant)
                AND (NOT :known_only::boolean OR (@lane_is_known))
            ORDER BY wakes_at
            LIMIT :count::integer
        ) AS lane
    ) AS woken,
    (
        SELECT coalesce(json_agg(json_build_array(ready, ripe, next_wake, unknown, ripe_unknown)), '[]')
        FROM unnest(:open_lanes::text[], :floors::bigint[]) WITH ORDINALITY AS open (lane, floor, number)
        CROSS JOIN LATERAL (
            SELECT
                count(*) FILTER (WHERE gate = ANY(@known)) AS ready,
                coalesce(json_agg(json_build_array(id, task)) FILTER (WHERE NOT gate = ANY(@known)), '[]') AS unknown
            FROM (
                SELECT id, task, gate FROM headgate.job
                WHERE job.lane = open.lane AND waiting AND NOT delayed AND run_at >= open.floor
                ORDER BY priority DESC, run_at, id
                LIMIT :count::integer
            ) AS first
        ) AS plain
        CROSS JOIN LATERAL (
            SELECT
                sum(ripe.ripe)::bigint AS ripe, min(next.run_at) AS next_wake,
                coalesce(json_agg(ripe.unknown) FILTER (WHERE ripe.unknown IS NOT NULL), '[]') AS ripe_unknown
            FROM generate_series(0, 9) AS level
            LEFT JOIN LATERAL (
                SELECT
                    count(*) AS ripe,
                    json_agg(json_build_array(id, task)) FILTER (WHERE NOT gate = ANY(@known)) AS unknown
                FROM (
                    SELECT id, task, gate FROM headgate.job
                    WHERE job.lane = open.lane AND waiting AND delayed AND priority = level
                        AND run_at <= (SELECT now FROM instant)
                    LIMIT :count::integer
                ) AS first
            ) AS ripe ON true
            LEFT JOIN LATERAL (
                SELECT run_at FROM headgate.job
                WHERE job.lane = open.lane AND waiting AND delayed AND priority = level AND run_at > (SELECT now FROM instant)
                ORDER BY run_at
                LIMIT 1
            ) AS next ON true
        ) AS delayed
    ) AS ungated,
    (SELECT min(opens_at) FROM headgate.bucket WHERE opens_at > (SELECT limit_now FROM instant)) AS next_bucket,
    (
        SELECT min(earliest)
        FROM unnest(:queues::text[]) AS wanted
        CROSS JOIN LATERAL (
            SELECT min(wakes_at) AS earliest FROM headgate.lane
            WHERE queue = wanted AND gated AND since IS NULL AND wakes_at > (SELECT now FROM instant)
        ) AS asleep
    ) AS next_wake
FROM instant
