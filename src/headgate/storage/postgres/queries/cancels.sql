-- The running jobs of a node that a user wants cancelled.
SELECT id FROM headgate.job WHERE state = 'running' AND node = :node AND cancel_requested
