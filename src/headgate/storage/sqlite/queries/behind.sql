-- The lanes that have waited longest behind each opened bucket, at most :count each.
SELECT json_group_array(json_array(lane.id, lane.queue, json(draws), waiting, since, behind, wakes_at))
FROM json_each(:buckets) AS opened
JOIN lane ON lane.id IN (
    SELECT id FROM lane
    WHERE behind = opened.value AND queue IN (SELECT value FROM json_each(:queues))
    ORDER BY since, id
    LIMIT :count
)
