-- A job keeps these permits, passes these draws when it starts next, and waits in this lane.
UPDATE job SET held = :held, passed = :passed, lane = coalesce(:lane, lane) WHERE seq = :seq
