-- Keep what running attempts have logged, as far as there is room; :lines is an array of [job seq, number, at, attempt, level,
-- logger, message], and :first one of [job seq, number of its first line here]. A line that is kept already stays.
WITH
first AS MATERIALIZED (
    SELECT json_extract(value, '$[0]') AS job, json_extract(value, '$[1]') AS number FROM json_each(:first)
),
room AS MATERIALIZED (
    SELECT first.job, :most - (SELECT count(*) FROM log_line WHERE log_line.job = first.job AND log_line.number < first.number) AS lines
    FROM first
),
line AS MATERIALIZED (
    SELECT
        value, json_extract(value, '$[0]') AS job, json_extract(value, '$[1]') AS number,
        row_number() OVER (PARTITION BY json_extract(value, '$[0]') ORDER BY json_extract(value, '$[1]')) AS place
    FROM json_each(:lines)
)
INSERT OR IGNORE INTO log_line (job, number, at, attempt, level, logger, message)
SELECT
    line.job, line.number, json_extract(value, '$[2]'), json_extract(value, '$[3]'), json_extract(value, '$[4]'),
    json_extract(value, '$[5]'), CASE WHEN place > room.lines THEN :marker ELSE json_extract(value, '$[6]') END
FROM line JOIN room ON room.job = line.job
WHERE place <= room.lines + 1
