-- The running jobs of a node.
SELECT json_group_array(json_array(seq, id, fence, cancel_requested, lost)) FROM job WHERE state = 'running' AND node = :node
