-- The same, of jobs that failed, or were cancelled.
SELECT count(*) FROM (SELECT 1 FROM job WHERE job.state = :state AND job.finished_at >= coalesce(:finished_from, 0) AND @job_filter LIMIT :most)
