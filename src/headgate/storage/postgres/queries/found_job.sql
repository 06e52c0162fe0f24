-- What cancelling, retrying and moving read of a job.
id, CASE WHEN state = 'blocked' THEN 'waiting' ELSE state END AS state, queue, draws, terms, held, passed,
costs IS NOT NULL AS has_costs, state = 'blocked' AS is_blocked, is_followed, follows, batch, delayed, run_at,
coalesce(substring(origin FROM '"on":"(any|success)"'), 'success') AS outcome
