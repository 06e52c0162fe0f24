-- A job keeps these permits, passes these draws when it starts next, and waits in this lane.
UPDATE headgate.job SET held = :held, passed = :passed, lane = :lane WHERE id = :id
