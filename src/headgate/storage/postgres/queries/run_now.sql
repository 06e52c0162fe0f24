-- A job that waits for its time is ready at once.
UPDATE headgate.job SET run_at = :now, delayed = false, give_up_at = :give_up_at::bigint
WHERE id = :id AND state = 'waiting'
