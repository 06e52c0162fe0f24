-- Final jobs follow others again, which are not final.
UPDATE headgate.job
SET state = 'blocked', attempt = 0, lost = 0, finished_at = NULL,
    expires_at = CASE WHEN :is_retry::boolean THEN NULL ELSE expires_at END,
    run_at = CASE WHEN :is_retry::boolean THEN :now::bigint ELSE run_at END,
    delayed = delayed AND NOT :is_retry::boolean,
    give_up_at = NULL, held = 0, passed = 0, charged_at = NULL, uncharged = 0, settled = NULL, result = NULL,
    error = CASE WHEN substring(error FROM '^{"type":"([^"\\]*)"') = 'LeaderNotSucceeded' THEN NULL ELSE error END,
    cancel_requested = false, node = NULL
WHERE id = ANY(:ids::text[]) AND finished_at IS NOT NULL
