-- A failed or cancelled job waits again, with all its tries.
UPDATE job
SET state = 'waiting', lane = :lane, attempt = 0, lost = 0, run_at = :now, delayed = 0, finished_at = NULL,
    expires_at = NULL, give_up_at = :give_up_at, passed = 0, charged_at = NULL, uncharged = 0,
    settled = NULL, result = NULL, cancel_requested = 0
WHERE seq = :seq AND state IN ('failed', 'cancelled')
