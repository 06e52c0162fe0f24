-- The gates of which it has changed whether they are the newest one of their subject that lives; these are just noted.
UPDATE headgate.task_gate SET is_newest = NOT is_newest
WHERE task = ANY(:tasks::text[])
    AND is_newest <> (
        signature = (
            SELECT signature FROM headgate.task_gate AS other
            WHERE other.task = task_gate.task AND other.last_seen > :now::bigint - :lives::bigint
            ORDER BY first_seen DESC, signature DESC
            LIMIT 1
        )
    )
