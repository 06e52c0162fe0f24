-- What a job has logged: the first lines after that number.
SELECT number, at, attempt, level, logger, message FROM headgate.log_line
WHERE job = :id AND number > :after
ORDER BY number
LIMIT :count
