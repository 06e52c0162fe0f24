-- The running jobs of a node that a user wants cancelled.
SELECT json_group_array(id) FROM job WHERE state = 'running' AND node = :node AND cancel_requested
