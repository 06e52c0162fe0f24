-- The lanes of each queue that have waited longest behind each opened bucket, at most :count of each.
SELECT json_group_array(json_array(lane.id, lane.queue, json(draws), waiting, since, behind, wakes_at, variant, opened_at))
FROM json_each(:buckets) AS opened
CROSS JOIN json_each(:queues) AS wanted
JOIN lane ON lane.id IN (
    SELECT id FROM lane
    WHERE behind = opened.value AND queue = wanted.value
        AND (NOT :known_only OR (@lane_is_known))
    ORDER BY since, id
    LIMIT :count
)
