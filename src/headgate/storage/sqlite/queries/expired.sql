-- Waiting and blocked jobs whose time to start has passed, with the bucket that their lane waits behind.
SELECT json_group_array(
    json_array(seq, lane, job.id, task, job.queue, expires_at, give_up_at, json(terms), json(job.draws), held,
        limit_name, key, job.costs IS NOT NULL, job.state = 'blocked', job.attempt
    )
)
FROM (
    SELECT seq FROM (SELECT seq FROM job WHERE state = 'waiting' AND expires_at <= :now ORDER BY expires_at LIMIT :count)
    UNION
    SELECT seq FROM (SELECT seq FROM job WHERE state = 'blocked' AND expires_at <= :now ORDER BY expires_at LIMIT :count)
    UNION
    SELECT seq FROM (SELECT seq FROM job WHERE state = 'waiting' AND give_up_at <= :now ORDER BY give_up_at LIMIT :count)
    LIMIT :count
) AS late
JOIN job USING (seq)
LEFT JOIN lane ON lane.id = job.lane AND job.state = 'waiting'
LEFT JOIN bucket ON bucket.id = lane.behind
