-- A waiting job will never run.
UPDATE job SET state = 'cancelled', finished_at = :now WHERE seq = :seq AND state = 'waiting'
