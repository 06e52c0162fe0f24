-- Forget what was done to anything but jobs before then.
DELETE FROM headgate.audit_entry
WHERE number IN (SELECT number FROM headgate.audit_entry WHERE kind <> 'job' AND at < :before LIMIT :count)
