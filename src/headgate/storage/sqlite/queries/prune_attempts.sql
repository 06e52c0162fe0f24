-- Forget the attempts of pruned jobs.
DELETE FROM attempt WHERE job IN (SELECT value FROM json_each(:ids))
