-- Unique keys.

-- name: unique_rivals
-- The unique keys of these jobs, which do not wait, and which other job waits there.
SELECT job.id, job.task, job.unique_key, other.id AS rival
FROM headgate.job
LEFT JOIN headgate.job AS other
    ON other.task = job.task AND other.unique_key = job.unique_key AND other.unique_key IS NOT NULL
        AND other.state IN ('waiting', 'blocked') AND other.id <> job.id
WHERE job.id {any:ids text} AND job.unique_key IS NOT NULL
ORDER BY job.id
