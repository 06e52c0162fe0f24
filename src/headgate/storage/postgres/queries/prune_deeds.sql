-- Forget what was done to pruned jobs.
DELETE FROM headgate.audit_entry WHERE subject = ANY(:ids::text[]) AND kind = 'job'
