-- A failed or cancelled job waits again, with all its tries.
UPDATE job
SET state = 'waiting', lane = :lane, attempt = 0, lost = 0, run_at = :now, delayed = 0, finished_at = NULL,
    expires_at = NULL, give_up_at = :give_up_at, passed = 0, charged_at = NULL, uncharged = 0,
    settled = NULL, result = NULL, progress = NULL, cancel_requested = 0,
    error = CASE WHEN json_extract(error, '$.type') = 'LeaderNotSucceeded' THEN NULL ELSE error END
WHERE seq = :seq AND state IN ('failed', 'cancelled')
