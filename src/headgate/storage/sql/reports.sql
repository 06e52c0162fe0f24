-- What running attempts report.

-- name: lock_reported [postgres]
-- Return which of these attempts are still the node's, locked, so that their reports do not mix with other changes;
-- those that another transaction has locked are left out.
SELECT job.id, job.fence
FROM headgate.job
WHERE job.id = ANY(:reported.id::bigint[]) AND job.node = :node AND job.finished_at IS NULL AND NOT job.waiting
    -- Not a join, which may compare each job with each other one.
    AND ((job.id, job.fence) IN (SELECT id, fence FROM {rows:reported(id job_id, fence integer)})) IS TRUE
ORDER BY job.id
FOR NO KEY UPDATE OF job SKIP LOCKED

-- name: lock_reported [sqlite]
SELECT job.id, job.fence
FROM {rows:reported(id job_id, fence integer)}
CROSS JOIN job ON job.id = reported.id AND job.fence = reported.fence
WHERE job.node = :node AND job.finished_at IS NULL AND NOT job.waiting

-- name: set_progress
-- Store the progress of running attempts.
UPDATE headgate.job SET progress = reported.progress
FROM {rows:reported(id job_id, progress json)}
WHERE @by_key(job.id, reported.id)

-- name: set_annotations
-- Store the annotations of running attempts.
UPDATE headgate.job SET annotations = reported.annotations
FROM {rows:reported(id job_id, annotations json)}
WHERE @by_key(job.id, reported.id)

-- name: keep_lines
-- Store log lines of running attempts, as far as there is room; a stored line stays.
INSERT INTO headgate.log_line (job, number, at, attempt, level, logger, message)
WITH line AS MATERIALIZED (
    SELECT *, row_number() OVER (PARTITION BY job ORDER BY number) AS place, min(number) OVER (PARTITION BY job) AS first
    FROM {rows:logged(job job_id, number bigint, at bigint, attempt integer, level smallint, logger text, message text)}
),
room AS MATERIALIZED (
    SELECT
        each.job,
        :most::bigint - (
            SELECT count(*) FROM headgate.log_line WHERE log_line.job = each.job AND log_line.number < each.first
        ) AS lines
    FROM (SELECT DISTINCT job, first FROM line) AS each
)
SELECT
    line.job, number, at, attempt, level, logger, CASE WHEN place > room.lines THEN :marker::text ELSE message END
FROM line JOIN room ON room.job = line.job
WHERE place <= room.lines + 1
ORDER BY line.job, number
ON CONFLICT (job, number) DO NOTHING

-- name: logs(order: newest oldest)
-- Return the first or the last log lines of a job after that number, of that level or a higher one.
SELECT {record:log_line} FROM headgate.log_line
WHERE job = :id::job_id AND number > :after AND level >= :level::smallint
ORDER BY number @$order
LIMIT :count
