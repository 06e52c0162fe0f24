-- What cancelling, retrying and moving look at, locked.
SELECT @found_job FROM headgate.job WHERE id = :id FOR UPDATE
