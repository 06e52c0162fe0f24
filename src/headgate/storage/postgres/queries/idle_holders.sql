-- Jobs that hold permits of a bucket without running, locked; those that somebody else has locked keep theirs.
SELECT @found_job
FROM headgate.job
WHERE held <> 0 AND state <> 'running' AND strpos(draws, :needle) > 0
ORDER BY id
FOR UPDATE SKIP LOCKED
