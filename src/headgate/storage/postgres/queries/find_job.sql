-- What cancelling, retrying and moving look at.
SELECT @found_job FROM headgate.job WHERE id = :id
