-- Lanes after a claim; :lanes is an array of [id, jobs gone, since, limit, key, wakes_at, opened_at], limit and key of
-- the bucket it waits behind.
UPDATE lane
SET waiting = lane.waiting - json_extract(moved.value, '$[1]'),
    since = json_extract(moved.value, '$[2]'),
    behind = (
        SELECT id FROM bucket
        WHERE limit_name = json_extract(moved.value, '$[3]') AND key = json_extract(moved.value, '$[4]')
    ),
    wakes_at = json_extract(moved.value, '$[5]'),
    opened_at = json_extract(moved.value, '$[6]')
FROM json_each(:lanes) AS moved
WHERE lane.id = json_extract(moved.value, '$[0]')
