-- The running jobs of a node.
SELECT json_group_array(json_array(seq, id, fence, queue, json(draws), cancel_requested, json(terms), held, passed, lost, uncharged)) FROM job WHERE state = 'running' AND node = :node
