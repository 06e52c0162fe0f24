-- The unique keys of these jobs, which do not wait, and which job waits there.
SELECT job.id, job.task, job.unique_key, other.id AS rival
FROM headgate.job
LEFT JOIN headgate.job AS other
    ON other.task = job.task AND other.unique_key = job.unique_key AND other.unique_key IS NOT NULL
        AND other.state IN ('waiting', 'blocked')
WHERE job.id = ANY(:ids::text[]) AND job.unique_key IS NOT NULL
ORDER BY job.id
