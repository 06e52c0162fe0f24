-- A page of jobs, newest first. :needle is what the draws of a job have to contain. It is planned for its values, so
-- that what is not asked for is not there.
SELECT @job_record
FROM (
    SELECT * FROM headgate.job
    WHERE (:state::text IS NULL OR state = :state)
        AND (:state::text IS DISTINCT FROM 'waiting' OR waiting)
        AND (:queue::text IS NULL OR queue = :queue)
        AND (:task::text IS NULL OR task = :task)
        AND (:needle::text IS NULL OR strpos(draws, :needle) > 0)
        AND (:before::text IS NULL OR id < :before)
    ORDER BY id DESC
    LIMIT :count
) AS job
LEFT JOIN headgate.lane ON lane.id = job.lane AND job.waiting
LEFT JOIN headgate.bucket ON bucket.id = lane.behind
ORDER BY job.id DESC
