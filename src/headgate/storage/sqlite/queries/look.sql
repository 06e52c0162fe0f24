-- What a claim starts from: opened buckets with lanes behind them, lanes that are due, open lanes, and the next timers.
-- :known_only leaves out the lanes that this node could do nothing with.
SELECT json_array(
    (
        SELECT json_group_array(json_array(id, limit_name, key, state, opens_at, closed_until))
        FROM (
            SELECT * FROM bucket
            WHERE opens_at <= :limit_now
                AND +limit_name IN (SELECT value FROM json_each(:limits))
                AND EXISTS (
                    SELECT 1 FROM lane
                    WHERE behind = bucket.id AND queue IN (SELECT value FROM json_each(:queues))
                        AND (NOT :known_only OR (@lane_is_known))
                )
            ORDER BY opens_at
            LIMIT :count
        )
    ),
    (
        SELECT json_group_array(json_array(lane.id, lane.queue, json(draws), waiting, since, behind, wakes_at, variant, opened_at))
        FROM json_each(:queues) AS wanted
        JOIN lane ON lane.id IN (
            SELECT id FROM lane
            WHERE queue = wanted.value AND gated AND behind IS NULL AND since IS NOT NULL
                AND (NOT :known_only OR (@lane_is_known))
            ORDER BY since, id
            LIMIT :count
        )
    ),
    (
        SELECT json_group_array(
            json_array(
                lane.id, lane.queue, json(draws), waiting, :limit_now - (:now - wakes_at), behind, wakes_at, variant,
                opened_at
            )
        )
        FROM json_each(:queues) AS wanted
        JOIN lane ON lane.id IN (
            SELECT id FROM lane
            WHERE queue = wanted.value AND gated AND since IS NULL AND wakes_at <= :now
                AND (NOT :known_only OR (@lane_is_known))
            ORDER BY wakes_at
            LIMIT :count
        )
    ),
    (
        SELECT json_group_array(json_array(lane.id, lane.queue, json(draws), waiting, since, behind, wakes_at, variant, opened_at))
        FROM json_each(:queues) AS wanted
        JOIN lane ON lane.queue = wanted.value AND lane.draws = '[]' AND lane.variant = '' AND lane.waiting > 0
    ),
    (SELECT min(opens_at) FROM bucket WHERE opens_at > :limit_now),
    (
        SELECT min(earliest)
        FROM (
            SELECT (
                SELECT min(wakes_at) FROM lane WHERE queue = wanted.value AND since IS NULL AND wakes_at > :now
            ) AS earliest
            FROM json_each(:queues) AS wanted
        )
    ),
    json(CASE WHEN :known_only THEN 'true' ELSE 'false' END),
    (SELECT revision FROM limit_revision)
)
