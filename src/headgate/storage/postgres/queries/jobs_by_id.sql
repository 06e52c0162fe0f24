-- These jobs as people look at them; with :final, those that are final.
SELECT @job_record
FROM headgate.job
LEFT JOIN headgate.lane ON lane.id = job.lane AND job.waiting
LEFT JOIN headgate.bucket ON bucket.id = lane.behind
WHERE job.id = ANY(:ids::text[]) AND (NOT :final::boolean OR job.finished_at IS NOT NULL)
