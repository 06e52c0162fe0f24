-- These waiting jobs fail without having run.
UPDATE job
SET state = 'failed', finished_at = :now, error = :error
WHERE seq IN (SELECT value FROM json_each(:seqs)) AND state = 'waiting'
