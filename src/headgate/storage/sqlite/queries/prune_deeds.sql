-- Forget what was done to pruned jobs.
DELETE FROM audit_entry WHERE kind = 'job' AND subject IN (SELECT value FROM json_each(:ids))
