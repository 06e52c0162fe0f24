-- A page of jobs that an index knows, newest first.
SELECT json_group_array(
    json_array(
        @job_record
    )
)
FROM (
    SELECT * FROM job
    WHERE @by_index
        AND @job_filter
    ORDER BY seq DESC
    LIMIT :count
) AS job
LEFT JOIN lane ON lane.id = job.lane AND job.waiting
LEFT JOIN bucket ON bucket.id = lane.behind
