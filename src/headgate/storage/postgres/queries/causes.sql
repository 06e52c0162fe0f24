-- Why these leaders did not succeed. Of a batch it is the error of one of its jobs, of one that had a leader of its own only if
-- all of them had.
SELECT id, error, false AS is_batch FROM headgate.job WHERE id = ANY(:leaders::text[])
UNION ALL
SELECT batch.id, member.error, true
FROM headgate.batch
LEFT JOIN LATERAL (
    SELECT error FROM headgate.job
    WHERE job.batch IS NOT NULL AND job.batch = batch.id AND job.state IN ('failed', 'cancelled')
    ORDER BY coalesce(substring(error FROM '^{"type":"([^"\\]*)"'), '') = 'LeaderNotSucceeded', job.id
    LIMIT 1
) AS member ON true
WHERE batch.id = ANY(:leaders::text[])
