-- Lanes that seem to be empty, locked; those that somebody claims from are his to judge.
SELECT id, behind FROM headgate.lane WHERE id = ANY(:lanes::text[]) AND waiting <= 0 FOR UPDATE SKIP LOCKED
