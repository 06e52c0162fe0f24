-- What cancelling and retrying look at; NULL if there is no such job.
SELECT (
    SELECT json_array(seq, id, state, lane, queue, json(draws), json(terms), held, passed, costs IS NOT NULL) FROM job WHERE id = :id
)
