-- The lanes of a batch that holds a permit wait behind its bucket, which is locked, no more.
UPDATE headgate.lane SET behind = NULL, opened_at = :limit_now
FROM unnest(:buckets::text[], :batches::text[]) AS line (bucket, batch)
WHERE lane.behind = line.bucket AND strpos(lane.variant, line.batch) > 0
