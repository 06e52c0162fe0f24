-- Final jobs follow others again, which are not final.
UPDATE job
SET state = 'blocked', attempt = 0, lost = 0, finished_at = NULL, expires_at = CASE WHEN :is_retry THEN NULL ELSE expires_at END,
    run_at = CASE WHEN :is_retry THEN :now ELSE run_at END, delayed = CASE WHEN :is_retry THEN 0 ELSE delayed END,
    give_up_at = NULL, held = 0, passed = 0, charged_at = NULL, uncharged = 0, settled = NULL, result = NULL,
    error = CASE WHEN json_extract(error, '$.type') = 'LeaderNotSucceeded' THEN NULL ELSE error END,
    cancel_requested = 0, node = NULL
WHERE seq IN (SELECT value FROM json_each(:seqs)) AND state IN ('failed', 'cancelled')
