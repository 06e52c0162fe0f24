-- Forget steps that began before then; what another node forgets or adds to at this moment is passed over. They are locked
-- when they are found, so where they lie is where they are deleted: by their keys it might be planned over their age.
DELETE FROM headgate.jobs_history
WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM headgate.jobs_history
    WHERE step = :step::integer AND at < :before::bigint
    LIMIT :count::bigint
    FOR UPDATE SKIP LOCKED
))
