-- What a job has logged last, after that number; the last line first.
SELECT number, at, attempt, level, logger, message FROM headgate.log_line
WHERE job = :id AND number > :after
ORDER BY number DESC
LIMIT :count
