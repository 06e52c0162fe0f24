-- The log of what people did.

-- name: keep_deed
-- Keep what somebody did; to a job, if it is audited in full.
INSERT INTO headgate.audit_entry (at, actor, action, kind, subject, detail)
SELECT :now::bigint, :actor::text, :action::text, :kind::text, :subject::text, :detail::text
WHERE :kind <> 'job' OR coalesce((SELECT audit FROM headgate.job WHERE id = :subject), 3) = 3

-- part: entries_of
(:kind::text IS NULL OR kind = :kind)
AND (:actor::text IS NULL OR actor = :actor)
AND (:before::bigint IS NULL OR number < :before)

-- name: audit_log
-- A page of what people did, newest first.
SELECT number, at, actor, action, kind, subject, detail
FROM headgate.audit_entry
WHERE @entries_of
ORDER BY number DESC
LIMIT :count

-- name: audit_log_of
-- The same of one subject.
SELECT number, at, actor, action, kind, subject, detail
FROM headgate.audit_entry
WHERE subject = :subject AND @entries_of
ORDER BY number DESC
LIMIT :count

-- name: prune_audit
-- Forget what was done to anything but jobs before then.
DELETE FROM headgate.audit_entry
WHERE number IN (SELECT number FROM headgate.audit_entry WHERE kind <> 'job' AND at < :before LIMIT :count)
