-- The audit log.

-- name: add_audit_entry
-- Store an audit entry, and return its number; for a job, only if the job is audited in full.
INSERT INTO headgate.audit_entry (at, actor, action, kind, subject, detail)
SELECT :now::bigint, :actor::text, :action::text, :kind::text, :subject::text, :detail::text
WHERE :kind <> 'job' OR coalesce((SELECT audit FROM headgate.job WHERE id = :job::job_id), 3) = 3
RETURNING number

-- name: change_audit_entry
-- Change what the entry of an action says that goes on.
UPDATE headgate.audit_entry SET detail = :detail::text WHERE number = :number::bigint

-- name: add_audit_entries
-- Store audit entries for jobs that are audited in full.
INSERT INTO headgate.audit_entry (at, actor, action, kind, subject, detail)
SELECT :now::bigint, added.actor, added.action, 'job', added.subject, added.detail
FROM {rows:added(job job_id, actor text, action text, subject text, detail text)}
JOIN headgate.job ON @by_key(job.id, added.job)
WHERE job.audit = 3

-- part: entries_of
(:kind::text IS NULL OR kind = :kind)
AND (:actor::text IS NULL OR actor = :actor)
AND (:before::bigint IS NULL OR number < :before)

-- name: audit_log
-- Return a page of audit entries, newest first.
SELECT {record:audit_entry}
FROM headgate.audit_entry
WHERE @entries_of
ORDER BY number DESC
LIMIT :count

-- name: audit_log_of
-- Return the same for one subject.
SELECT {record:audit_entry}
FROM headgate.audit_entry
WHERE subject = :subject AND @entries_of
ORDER BY number DESC
LIMIT :count

-- name: sign_outs
-- Return the sign-outs since then, oldest first. Sessions that they ended are refused by all processes.
SELECT {record:audit_entry}
FROM headgate.audit_entry
WHERE kind <> 'job' AND at >= :since AND kind = 'user' AND action <> 'sign in'
ORDER BY number

-- name: prune_audit
-- Delete audit entries from before then that are not about a job; sign-outs only if no session needs them any more.
DELETE FROM headgate.audit_entry
WHERE number IN (
    SELECT number FROM headgate.audit_entry
    WHERE kind <> 'job' AND at < :before AND (kind <> 'user' OR at < :sign_outs_before)
    LIMIT :count
)
