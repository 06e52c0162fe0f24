-- The followers of these leaders that were cancelled because of how they ended, and have not been retried since; locked. One
-- stays as it is if another waits under its unique key by now.
SELECT id, state, is_followed, batch
FROM headgate.job
WHERE follows = ANY(:leaders::text[]) AND finished_at IS NOT NULL
    AND CASE WHEN state = 'cancelled' THEN substring(error FROM '^{"type":"([^"\\]*)"') = 'LeaderNotSucceeded' END
    AND NOT EXISTS (
        SELECT 1 FROM headgate.job AS other
        WHERE other.task = job.task AND other.unique_key = job.unique_key AND other.unique_key IS NOT NULL
            AND other.state IN ('waiting', 'blocked')
    )
ORDER BY id
FOR UPDATE
