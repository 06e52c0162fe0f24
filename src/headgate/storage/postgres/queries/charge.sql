-- Keep the new states of charged buckets.
UPDATE headgate.bucket SET state = new.state, idle_at = new.idle_at
FROM unnest(:ids::text[], :states::text[], :idle_at::bigint[]) AS new (id, state, idle_at)
WHERE bucket.id = new.id
