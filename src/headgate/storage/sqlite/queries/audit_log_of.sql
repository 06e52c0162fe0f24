-- The same of one subject.
SELECT json_group_array(json_array(number, at, actor, action, kind, subject, detail))
FROM (
    SELECT * FROM audit_entry
    WHERE subject = :subject
        AND (:kind IS NULL OR kind = :kind)
        AND (:actor IS NULL OR actor = :actor)
        AND (:before IS NULL OR number < :before)
    ORDER BY number DESC
    LIMIT :count
)
