-- Jobs that finished in these states before then, how many lines each has logged, and its batch.
SELECT json_group_array(
    json_array(
        seq, id, held, json(draws), json(terms), (SELECT count(*) FROM log_line WHERE log_line.job = job.id), batch
    )
)
FROM (
    SELECT * FROM job
    WHERE state IN (SELECT value FROM json_each(:states)) AND finished_at < :before
    LIMIT :count
) AS job
