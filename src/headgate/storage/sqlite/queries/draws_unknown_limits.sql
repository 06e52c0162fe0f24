-- Whether a job draws on a limit that is not among :limits.
EXISTS (
    SELECT 1 FROM json_each(job.draws) AS draw
    WHERE json_extract(draw.value, '$[0]') NOT IN (SELECT value FROM json_each(:limits))
)
