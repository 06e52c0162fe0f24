-- Ask the node of a running job to cancel it.
UPDATE headgate.job SET cancel_requested = true WHERE id = :id AND finished_at IS NULL AND NOT waiting
