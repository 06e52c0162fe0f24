-- A waiting job asks for something else from now on, and waits in another lane; a blocked one will.
UPDATE job
SET draws = :draws, costs = :costs, terms = :terms, held = :held, passed = :passed, lane = :lane, gate = coalesce(nullif(:gate, ''), gate)
WHERE seq = :seq AND +state IN ('waiting', 'blocked')
