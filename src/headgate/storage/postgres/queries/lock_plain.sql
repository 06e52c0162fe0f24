-- Of these jobs those that wait, hold no permit, cost no more than 1 and have never been tried, locked. Those that somebody
-- else has locked are left to him.
SELECT id, queue, draws, terms, delayed, run_at
FROM headgate.job
WHERE id = ANY(:ids::text[]) AND state = 'waiting' AND attempt = 0 AND held = 0 AND passed = 0 AND costs IS NULL
ORDER BY id
FOR UPDATE SKIP LOCKED
