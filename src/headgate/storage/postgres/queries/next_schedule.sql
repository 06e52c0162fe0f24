-- When the first schedule of these tasks is due that is not due yet.
SELECT next_at
FROM headgate.schedule
WHERE next_at IS NOT NULL AND paused_at IS NULL AND next_at > :now
    AND task = ANY(:tasks::text[]) AND name <> ALL(:unable::text[])
ORDER BY next_at
LIMIT 1
