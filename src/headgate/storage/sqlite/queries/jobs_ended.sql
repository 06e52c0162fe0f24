-- A page of jobs that failed, or were cancelled: they are few, and found by their end.
SELECT json_group_array(
    json_array(
        @job_record
    )
)
FROM (
    SELECT * FROM job
    WHERE job.state = :state AND job.finished_at >= coalesce(:finished_from, 0)
        AND @job_filter
    ORDER BY job.seq * :sign
    LIMIT :count
) AS job
LEFT JOIN lane ON lane.id = job.lane AND job.state = 'waiting'
LEFT JOIN bucket ON bucket.id = lane.behind
