-- Those of these lanes that are still due, behind an opened bucket or awake, and that nobody else has locked; and which
-- revision of the settings holds while the node is held.
SELECT revision, held.*
FROM headgate.limit_revision
LEFT JOIN (
    SELECT id, waiting, since, behind, wakes_at, opened_at
    FROM headgate.lane
    WHERE id = ANY(:lanes::text[])
        AND (
            (behind IS NULL AND since IS NOT NULL)
            OR behind = ANY(:opened::text[])
            OR (since IS NULL AND wakes_at <= :now)
        )
    FOR UPDATE SKIP LOCKED
) AS held ON true
