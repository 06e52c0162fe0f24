-- A page of jobs, oldest first.
SELECT @job_record
FROM (
    SELECT * FROM headgate.job
    WHERE @job_filter
    ORDER BY id
    LIMIT :count
) AS job
LEFT JOIN headgate.lane ON lane.id = job.lane AND job.waiting
LEFT JOIN headgate.bucket ON bucket.id = lane.behind
ORDER BY job.id
