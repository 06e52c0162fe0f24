-- Why these leaders did not succeed: [id, error, whether it is a batch]. Of a batch it is the error of one of its jobs, of one that
-- had a leader of its own only if all of them had.
SELECT json_group_array(json(cause))
FROM (
    SELECT json_array(id, json(error), json('false')) AS cause FROM job WHERE id IN (SELECT value FROM json_each(:leaders))
    UNION ALL
    SELECT json_array(
        batch.id,
        json((
            SELECT error FROM job
            WHERE job.batch IS NOT NULL AND job.batch = batch.id AND +state IN ('failed', 'cancelled')
            ORDER BY coalesce(json_extract(error, '$.type'), '') = 'LeaderNotSucceeded', seq
            LIMIT 1
        )),
        json('true')
    )
    FROM batch WHERE batch.id IN (SELECT value FROM json_each(:leaders))
)
