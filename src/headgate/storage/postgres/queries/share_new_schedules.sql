-- Whoever stores a new schedule, until its transaction ends: what is noted of it meanwhile is not to be forgotten.
SELECT pg_advisory_xact_lock_shared('headgate.schedule'::regclass::oid::integer, 0)
