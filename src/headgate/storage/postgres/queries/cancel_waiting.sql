-- A waiting job will never run.
UPDATE headgate.job SET state = 'cancelled', waiting = false, finished_at = :now WHERE id = :id AND state = 'waiting'
