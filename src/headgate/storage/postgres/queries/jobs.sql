-- A page of jobs, newest first.
SELECT @job_record
FROM (
    SELECT * FROM headgate.job
    WHERE @job_filter
    ORDER BY id DESC
    LIMIT :count
) AS job
LEFT JOIN headgate.lane ON lane.id = job.lane AND job.waiting
LEFT JOIN headgate.bucket ON bucket.id = lane.behind
ORDER BY job.id DESC
