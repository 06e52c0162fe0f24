-- The followers of these leaders that were cancelled because of how they ended, and have not been retried since. One
-- stays as it is if another waits under its unique key by now.
SELECT json_group_array(json_array(seq, id, state, json(CASE WHEN is_followed THEN 'true' ELSE 'false' END), batch))
FROM job
WHERE follows IN (SELECT value FROM json_each(:leaders)) AND +state = 'cancelled'
    AND json_extract(error, '$.type') = 'LeaderNotSucceeded'
    AND NOT EXISTS (
        SELECT 1 FROM job AS other
        WHERE other.task = job.task AND other.unique_key = job.unique_key AND other.unique_key IS NOT NULL
            AND other.state IN ('waiting', 'blocked')
    )
