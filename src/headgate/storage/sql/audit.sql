-- The log of what people did.

-- name: keep_deed
-- Keep what somebody did; to a job, if it is audited in full.
INSERT INTO headgate.audit_entry (at, actor, action, kind, subject, detail)
SELECT :now::bigint, :actor::text, :action::text, :kind::text, :subject::text, :detail::text
WHERE :kind <> 'job' OR coalesce((SELECT audit FROM headgate.job WHERE id = :subject), 3) = 3
