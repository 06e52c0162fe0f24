-- As take_ungated, where jobs that asked for a time are due among them.
WITH @me_as_read,
candidate AS (
    SELECT first.id, first.lane, first.priority, first.run_at
    FROM me
    CROSS JOIN unnest(:lanes::text[], :counts::integer[]) AS visited (visited_lane, most)
    CROSS JOIN LATERAL (
        SELECT * FROM (
            SELECT id, lane, priority, run_at FROM headgate.job
            WHERE job.lane = visited_lane AND waiting AND NOT delayed AND gate = ANY(@known)
                AND (expires_at IS NULL OR expires_at > :now) AND (give_up_at IS NULL OR give_up_at > :now)
            ORDER BY priority DESC, run_at, id
            LIMIT most
            FOR UPDATE SKIP LOCKED
        ) AS plain
        UNION ALL
        SELECT ripe.*
        FROM generate_series(0, 9) AS level
        CROSS JOIN LATERAL (
            SELECT id, lane, priority, run_at FROM headgate.job
            WHERE job.lane = visited_lane AND waiting AND delayed AND priority = level AND run_at <= :now
                AND gate = ANY(@known) AND (expires_at IS NULL OR expires_at > :now) AND (give_up_at IS NULL OR give_up_at > :now)
            ORDER BY run_at, id
            LIMIT most
            FOR UPDATE SKIP LOCKED
        ) AS ripe
    ) AS first
),
chosen AS (
    SELECT first.id
    FROM unnest(:lanes::text[], :counts::integer[]) AS visited (lane, most)
    CROSS JOIN LATERAL (
        SELECT id FROM candidate WHERE candidate.lane = visited.lane ORDER BY priority DESC, run_at, id LIMIT most
    ) AS first
),
taken AS (
    UPDATE headgate.job
    SET state = 'running', waiting = false, node = :node, started_at = :now, attempt = attempt + 1, fence = fence + 1,
        cancel_requested = false, charged_at = :limit_now, uncharged = held | passed
    WHERE job.id = ANY(ARRAY(SELECT id FROM chosen))
    RETURNING job.*
),
left_lanes AS (
    INSERT INTO headgate.arrival (lane, queue, draws, variant, jobs, is_ready, since)
    SELECT lane, queue, '[]', '', -count(*), false, :limit_now FROM taken GROUP BY lane, queue
)
SELECT @head FROM taken AS job
