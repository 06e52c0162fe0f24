-- Final jobs that finished before then.
SELECT json_group_array(json_array(seq, id, held, json(draws), json(terms)))
FROM (
    SELECT * FROM job
    WHERE state IN ('succeeded', 'failed', 'cancelled') AND finished_at < :before
    LIMIT :count
)
