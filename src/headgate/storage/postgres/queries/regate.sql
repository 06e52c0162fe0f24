-- A waiting job asks for something else from now on, and waits in another lane.
UPDATE headgate.job
SET draws = :draws, costs = :costs, terms = :terms, held = :held, passed = :passed, lane = :lane
WHERE id = :id AND state = 'waiting'
RETURNING delayed, run_at
