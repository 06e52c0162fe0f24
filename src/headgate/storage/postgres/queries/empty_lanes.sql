-- These lanes, which are locked, have no job: nothing is waited for.
UPDATE headgate.lane SET since = NULL, behind = NULL, wakes_at = NULL
WHERE id = ANY(:lanes::text[]) AND NOT EXISTS (SELECT 1 FROM headgate.job WHERE job.lane = lane.id AND waiting)
