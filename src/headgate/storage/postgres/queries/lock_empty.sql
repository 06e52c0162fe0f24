-- Lanes that seem to be empty, locked; those that somebody claims from are his to judge.
SELECT id, behind FROM headgate.lane WHERE id = ANY(:lanes::bytea[]) AND waiting <= 0 FOR UPDATE SKIP LOCKED
