-- Ask the node of a running job to cancel it.
UPDATE job SET cancel_requested = 1 WHERE seq = :seq AND state = 'running'
