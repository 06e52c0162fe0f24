-- A lane whose job asks for another time is due, or sleeps no longer than until then.
UPDATE lane
SET since = CASE WHEN since IS NULL AND NOT :delayed THEN :limit_now ELSE since END,
    wakes_at = CASE
        WHEN :delayed AND (wakes_at IS NULL OR :run_at < wakes_at) THEN :run_at ELSE wakes_at
    END
WHERE id = :lane
