-- A job that waits for its time is ready at once.
UPDATE job SET run_at = :now, delayed = 0, give_up_at = :give_up_at
WHERE seq = :seq AND state = 'waiting' AND delayed AND run_at > :now
