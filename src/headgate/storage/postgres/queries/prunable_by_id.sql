-- Those of these jobs that finished in these states before then, and how many lines each has logged.
SELECT id, held, draws, terms, (SELECT count(*) FROM headgate.log_line WHERE log_line.job = final.id) AS lines
FROM (
    SELECT id, held, draws, terms FROM headgate.job
    WHERE id = ANY(:ids::text[]) AND state = ANY(:states::text[]) AND finished_at < :before
    LIMIT :count
) AS final
