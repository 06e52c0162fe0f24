-- What cancelling and retrying look at; NULL if there is no such job.
SELECT (
    SELECT json_array(
        seq, id, CASE WHEN state = 'blocked' THEN 'waiting' ELSE state END, lane, queue, json(draws), json(terms), held, passed,
        costs IS NOT NULL, state = 'blocked', follows, batch, delayed, run_at,
        coalesce(json_extract(origin, '$.on'), 'success')
    )
    FROM job WHERE id = :id
)
