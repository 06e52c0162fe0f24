-- What became of these jobs, as far as they were the node's last.
SELECT json_group_array(json_array(id, fence, state, json(error), cancel_requested))
FROM job WHERE id IN (SELECT value FROM json_each(:ids)) AND +node = :node
