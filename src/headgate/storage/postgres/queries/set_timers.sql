-- A bucket opens at its time as long as a lane waits behind it. Each is asked for by itself: EXISTS may be answered by
-- reading all lanes that there are.
UPDATE headgate.bucket
SET opens_at = new.opens_at
FROM (
    SELECT id, CASE WHEN (SELECT true FROM headgate.lane WHERE behind = timer.id LIMIT 1) THEN opens_at END AS opens_at
    FROM unnest(:ids::text[], :opens_at::bigint[]) AS timer (id, opens_at)
) AS new
WHERE bucket.id = new.id AND bucket.opens_at IS DISTINCT FROM new.opens_at
