-- Buckets after permits came back: whoever waits behind one is looked at by the next claim.
UPDATE headgate.bucket
SET state = new.state, idle_at = new.idle_at,
    opens_at = CASE WHEN opens_at IS NOT NULL THEN least(opens_at, :limit_now) END
FROM unnest(:ids::bytea[], :states::text[], :idle_at::bigint[]) AS new (id, state, idle_at)
WHERE bucket.id = new.id
