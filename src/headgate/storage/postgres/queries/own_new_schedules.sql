-- Whether nobody stores a new schedule now, nor will until the transaction ends.
SELECT pg_try_advisory_xact_lock('headgate.schedule'::regclass::oid::integer, 0)
