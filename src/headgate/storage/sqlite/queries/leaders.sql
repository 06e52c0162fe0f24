-- How jobs and batches ended that others are to follow: [id, state] of a job, [id, null, failed, cancelled, pending] of a batch.
SELECT json_group_array(json(found))
FROM (
    SELECT json_array(id, state, 0, 0, 0) AS found FROM job WHERE id IN (SELECT value FROM json_each(:ids))
    UNION ALL
    SELECT json_array(id, NULL, failed, cancelled, pending) FROM batch WHERE id IN (SELECT value FROM json_each(:ids))
)
