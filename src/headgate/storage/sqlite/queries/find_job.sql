-- What cancelling and retrying look at.
SELECT seq, state, lane, queue, draws FROM job WHERE id = :id
