-- A waiting job, which is locked, asks for something else from now on, and waits in another lane; a blocked one will.
UPDATE headgate.job
SET draws = :draws, costs = :costs, terms = :terms, held = :held, passed = :passed, lane = :lane, gate = coalesce(nullif(:gate, ''), gate)
WHERE id = :id AND finished_at IS NULL
RETURNING delayed, run_at
