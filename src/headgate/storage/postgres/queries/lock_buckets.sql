-- These buckets, locked in the order of their ids, with the time at which each was.
SELECT id, limit_name, key, state, opens_at, closed_until, @server_clock AS now, (SELECT ahead FROM headgate.limit_time)
FROM (
    SELECT * FROM headgate.bucket WHERE id = ANY(:ids::text[]) ORDER BY id FOR UPDATE
) AS bucket
