-- The limit sets of releases, by their subjects.

-- name: limit_sets
SELECT task, signature FROM headgate.task_limit_set WHERE is_newest

-- name: limit_sets_changed
-- Mark the backlog of subjects whose limit set is new as still to be moved, even if it was moved before.
UPDATE headgate.task_limit_set SET is_done = false
WHERE is_done
    AND EXISTS (
        SELECT 1 FROM {rows:own(task text, signature text)}
        WHERE own.task = task_limit_set.task
            AND NOT EXISTS (
                SELECT 1 FROM headgate.task_limit_set AS known WHERE known.task = own.task AND known.signature = own.signature
            )
    )

-- name: note_limit_sets
-- Note that these limit sets are alive. A row is written only after a third of the limit set's life.
INSERT INTO headgate.task_limit_set (task, signature, first_seen, last_seen, is_done, is_newest)
SELECT task, signature, :now::bigint, :now::bigint, false, false
FROM {rows:own(task text, signature text)}
WHERE true
ORDER BY task
ON CONFLICT (task, signature) DO UPDATE SET last_seen = excluded.last_seen
WHERE task_limit_set.last_seen <= excluded.last_seen - :lives::bigint / 3

-- name: set_limit_sets_back
-- Count limit sets that a clock which was ahead has noted as noted until now, in the same order. Else they would be alive, and
-- the newest, until the date of that clock.
UPDATE headgate.task_limit_set
SET first_seen = CASE WHEN first_seen > :now::bigint THEN first_seen - last_seen + :now::bigint - 1 ELSE first_seen END,
    last_seen = :now::bigint
WHERE task {any:tasks text} AND last_seen > :now::bigint + :lives::bigint

-- name: newest_changed
-- Mark the newest limit set of each subject: of the limit sets that are alive, the one that was first noted last. Return the
-- subjects whose newest limit set has changed.
UPDATE headgate.task_limit_set SET is_newest = NOT is_newest
WHERE task {any:tasks text}
    AND is_newest <> (
        signature = (
            SELECT signature FROM headgate.task_limit_set AS other
            WHERE other.task = task_limit_set.task AND other.last_seen > :now::bigint - :lives::bigint
            ORDER BY first_seen DESC, signature DESC
            LIMIT 1
        )
    )
RETURNING task

-- name: newest_limit_sets
-- Return those of these limit sets that are the newest of their subjects.
SELECT task_limit_set.task, is_done
FROM headgate.task_limit_set
JOIN {rows:own(task text, signature text)} ON own.task = task_limit_set.task AND own.signature = task_limit_set.signature
WHERE is_newest

-- name: limit_sets_done
-- Note that the backlog of these subjects has been moved to these limit sets, and no longer to others.
UPDATE headgate.task_limit_set SET is_done = (task_limit_set.signature = own.signature)
FROM {rows:own(task text, signature text)}
WHERE task_limit_set.task = own.task

-- name: lock_nodes
-- Lock all nodes, once none of them is in the middle of a claim.
SELECT id FROM headgate.node ORDER BY id {for update}
