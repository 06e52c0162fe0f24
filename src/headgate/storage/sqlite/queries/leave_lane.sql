-- Jobs are gone from a lane; the last one leaves it empty.
UPDATE lane
SET waiting = waiting - :jobs,
    since = CASE WHEN waiting > :jobs THEN since END,
    behind = CASE WHEN waiting > :jobs THEN behind END,
    wakes_at = CASE WHEN waiting > :jobs THEN wakes_at END
WHERE id = :lane
