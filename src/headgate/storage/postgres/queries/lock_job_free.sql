-- As lock_job, unless somebody else has it locked.
SELECT @found_job FROM headgate.job WHERE id = :id FOR UPDATE SKIP LOCKED
