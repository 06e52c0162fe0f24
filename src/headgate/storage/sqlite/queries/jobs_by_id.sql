-- These jobs as people look at them.
SELECT json_group_array(
    json_array(
        @job_record
    )
)
FROM json_each(:ids) AS wanted
JOIN job ON job.id = wanted.value
LEFT JOIN lane ON lane.id = job.lane AND job.waiting
LEFT JOIN bucket ON bucket.id = lane.behind
WHERE NOT :final OR job.finished_at IS NOT NULL
