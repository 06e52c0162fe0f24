-- The permits that jobs still hold.
UPDATE headgate.job SET held = new.held
FROM unnest(:ids::text[], :held::bigint[]) AS new (id, held)
WHERE job.id = new.id
