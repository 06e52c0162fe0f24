-- These waiting jobs are now the node's to run.
UPDATE job
SET state = 'running', waiting = false, node = :node, started_at = :now, attempt = attempt + 1, fence = fence + 1, cancel_requested = 0,
    charged_at = :limit_now
WHERE seq IN (SELECT value FROM json_each(:seqs)) AND state = 'waiting'
