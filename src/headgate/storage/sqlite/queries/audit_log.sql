-- A page of what people did, newest first.
SELECT json_group_array(json_array(number, at, actor, action, kind, subject, detail))
FROM (
    SELECT * FROM audit_entry
    WHERE (:kind IS NULL OR kind = :kind)
        AND (:subject IS NULL OR subject = :subject)
        AND (:actor IS NULL OR actor = :actor)
        AND (:before IS NULL OR number < :before)
    ORDER BY number DESC
    LIMIT :count
)
