-- Waiting jobs without limits are now the node's to run: the first of each lane, so many of each, from its floor on. A
-- lane's count is lowered by an arrival, so that nodes that claim at once do not wait for each other.
-- The ids are an array, not a join: it is planned as few, and so by the primary key, whatever the statistics say.
WITH @me_as_read,
taken AS (
    UPDATE headgate.job
    SET state = 'running', waiting = false, node = :node, started_at = :now, attempt = attempt + 1, fence = fence + 1,
        cancel_requested = false, charged_at = :limit_now, uncharged = held | passed
    WHERE job.id = ANY(
        ARRAY(
            SELECT first.id
            FROM me
            CROSS JOIN unnest(:lanes::text[], :counts::integer[], :floors::bigint[]) AS visited (lane, most, floor)
            CROSS JOIN LATERAL (
                SELECT id FROM headgate.job AS first
                WHERE first.lane = visited.lane AND waiting AND NOT delayed AND run_at >= visited.floor
                    AND gate = ANY(@known) AND (expires_at IS NULL OR expires_at > :now)
                    AND (give_up_at IS NULL OR give_up_at > :now)
                ORDER BY priority DESC, run_at, id
                LIMIT visited.most
                FOR UPDATE SKIP LOCKED
            ) AS first
        )
    )
    RETURNING job.*
),
left_lanes AS (
    INSERT INTO headgate.arrival (lane, queue, draws, variant, jobs, is_ready, since)
    SELECT lane, queue, '[]', '', -count(*), false, :limit_now FROM taken GROUP BY lane, queue
)
SELECT @head FROM taken AS job
