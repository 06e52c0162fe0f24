-- Forget the attempts of pruned jobs.
DELETE FROM headgate.attempt WHERE job = ANY(:ids::text[])
