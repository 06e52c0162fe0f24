-- A page of what people did, newest first.
SELECT number, at, actor, action, kind, subject, detail FROM headgate.audit_entry
WHERE (:kind::text IS NULL OR kind = :kind)
    AND (:subject::text IS NULL OR subject = :subject)
    AND (:actor::text IS NULL OR actor = :actor)
    AND (:before::bigint IS NULL OR number < :before)
ORDER BY number DESC
LIMIT :count
