-- A failed or cancelled job waits again, with all its tries.
UPDATE headgate.job
SET state = 'waiting', waiting = true, lane = :lane, attempt = 0, lost = 0, run_at = :now, delayed = false, finished_at = NULL,
    expires_at = NULL, give_up_at = :give_up_at::bigint, passed = 0, charged_at = NULL, uncharged = 0,
    settled = NULL, result = NULL, progress = NULL, cancel_requested = false,
    error = CASE WHEN substring(error FROM '^{"type":"([^"\\]*)"') = 'LeaderNotSucceeded' THEN NULL ELSE error END
WHERE id = :id AND state IN ('failed', 'cancelled')
