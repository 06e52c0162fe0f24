-- What became of these jobs, as far as they were the node's last.
SELECT id, fence, state, error, cancel_requested FROM headgate.job WHERE id = ANY(:ids::text[]) AND node = :node
