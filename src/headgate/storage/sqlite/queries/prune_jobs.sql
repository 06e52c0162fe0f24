-- Forget final jobs.
DELETE FROM job WHERE seq IN (SELECT value FROM json_each(:seqs)) AND finished_at IS NOT NULL
