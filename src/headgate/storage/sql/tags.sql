-- The index of tags: a row for each tag of a job. The tags themselves are in the options of the job.

-- name: add_tags
-- Store the tags of new jobs. Jobs that were not stored, or were stored before with other tags, get none.
INSERT INTO headgate.job_tag (tag, job)
SELECT tagged.tag, tagged.job
FROM {rows:tagged(tag text, job job_id)}
CROSS JOIN headgate.job
WHERE @by_key(job.id, tagged.job) AND job.options IS NOT NULL
    AND {position}(replace(job.options, ']', ','), '"' || tagged.tag || '",') > 0
ON CONFLICT DO NOTHING

-- name: remove_tags [postgres]
-- Remove the tags of jobs that are deleted or replaced.
DELETE FROM headgate.job_tag
USING {rows:tagged(tag text, job job_id)}
WHERE @by_key(job_tag.tag, tagged.tag) AND @by_key(job_tag.job, tagged.job)

-- name: remove_tags [sqlite]
DELETE FROM job_tag
WHERE (tag, job) IN (SELECT tag, job FROM {rows:tagged(tag text, job job_id)})
