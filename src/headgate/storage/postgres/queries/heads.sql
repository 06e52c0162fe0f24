-- The first jobs of each lane that asked for no time, so many of each, from its floor on.
SELECT @head
FROM unnest(:lanes::text[], :counts::integer[], :floors::bigint[]) AS visited (lane, most, floor)
CROSS JOIN LATERAL (
    SELECT * FROM headgate.job
    WHERE job.lane = visited.lane AND waiting AND NOT delayed AND run_at >= visited.floor AND @not_locked
    ORDER BY priority DESC, run_at, id
    LIMIT visited.most
) AS job
