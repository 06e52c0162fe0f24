-- Keep what somebody did; to a job, if it is audited in full.
INSERT INTO audit_entry (at, actor, action, kind, subject, detail)
SELECT :now, :actor, :action, :kind, :subject, :detail
WHERE :kind <> 'job' OR coalesce((SELECT audit FROM job WHERE id = :subject), 3) = 3
