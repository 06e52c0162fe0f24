-- A job that stood under a unique key, locked.
SELECT @standing_job FROM headgate.job WHERE id = :id FOR UPDATE
