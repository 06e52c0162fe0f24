-- What a job has logged, oldest first: the first lines after that number, or the last ones.
SELECT json_group_array(json_array(number, at, attempt, level, logger, message))
FROM (
    SELECT * FROM (
        SELECT log_line.* FROM log_line
        WHERE job = (SELECT seq FROM job WHERE id = :id) AND number > :after
        ORDER BY number * :sign
        LIMIT :count
    )
    ORDER BY number
)
