-- Waiting jobs whose time to start has passed.
SELECT json_group_array(json_array(seq, lane, id, task, queue))
FROM (
    SELECT * FROM job WHERE state = 'waiting' AND expires_at <= :now ORDER BY expires_at LIMIT :count
)
