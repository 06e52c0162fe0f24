-- Final jobs that finished before then.
SELECT json_group_array(seq)
FROM (
    SELECT seq FROM job
    WHERE state IN ('succeeded', 'failed', 'cancelled') AND finished_at < :before
    LIMIT :count
)
