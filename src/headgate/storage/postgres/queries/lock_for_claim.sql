-- The node that claims, held, and these buckets, locked in the order of their ids, with the time at which each was.
WITH @me
SELECT bucket.id, limit_name, key, state, opens_at, closed_until, @server_clock AS now, (SELECT ahead FROM headgate.limit_time)
FROM me
CROSS JOIN LATERAL (
    SELECT * FROM headgate.bucket WHERE id = ANY(:ids::text[]) ORDER BY id FOR UPDATE
) AS bucket
