-- Keep what running attempts have logged, as far as there is room; a line that is kept already stays.
WITH line AS MATERIALIZED (
    SELECT *, row_number() OVER (PARTITION BY job ORDER BY number) AS place, min(number) OVER (PARTITION BY job) AS first
    FROM unnest(
        :jobs::text[], :numbers::bigint[], :at::bigint[], :attempts::integer[], :levels::smallint[], :loggers::text[],
        :messages::text[]
    ) AS said (job, number, at, attempt, level, logger, message)
),
room AS MATERIALIZED (
    SELECT
        each.job,
        :most::bigint - (
            SELECT count(*) FROM headgate.log_line WHERE log_line.job = each.job AND log_line.number < each.first
        ) AS lines
    FROM (SELECT DISTINCT job, first FROM line) AS each
)
INSERT INTO headgate.log_line (job, number, at, attempt, level, logger, message)
SELECT
    line.job, number, at, attempt, level, logger, CASE WHEN place > room.lines THEN :marker::text ELSE message END
FROM line JOIN room ON room.job = line.job
WHERE place <= room.lines + 1
ORDER BY line.job, number
ON CONFLICT (job, number) DO NOTHING
