-- The gates of which it has changed whether they are the newest one of their subject that lives; :gates are just noted.
UPDATE task_gate SET is_newest = NOT is_newest
WHERE task IN (SELECT json_extract(value, '$[0]') FROM json_each(:gates))
    AND is_newest <> (
        signature = (
            SELECT signature FROM task_gate AS other
            WHERE other.task = task_gate.task AND other.last_seen > :now - :lives
            ORDER BY first_seen DESC, signature DESC
            LIMIT 1
        )
    )
