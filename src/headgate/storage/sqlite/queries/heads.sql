-- The first :count jobs of each lane that asked for no time.
SELECT json_group_array(
    json_array(
        job.seq, lane, job.id, task, queue, CAST(payload AS TEXT), priority, run_at, attempt, fence, lost, enqueued_at, expires_at,
        json(costs), json(headers), json(options), json(origin), json(terms), held, passed,
        give_up_at, CASE WHEN held THEN json(draws) END, gate
    )
)
FROM json_each(:lanes) AS visited
JOIN job ON job.seq IN (
    SELECT seq FROM job
    WHERE lane = visited.value AND waiting AND delayed = 0
    ORDER BY priority DESC, run_at, seq
    LIMIT :count
)
