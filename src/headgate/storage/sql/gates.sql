-- The gates of releases, by their subjects.

-- name: gates
SELECT task, signature FROM headgate.task_gate WHERE is_newest

-- name: live_gates
-- Return the subjects of gates that are alive, without those of schedules.
SELECT DISTINCT task FROM headgate.task_gate WHERE last_seen > :now::bigint - :lives::bigint AND task NOT LIKE 'schedule %'

-- name: gates_changed
-- Mark the backlog of subjects whose gate is new as still to be moved, even if it was moved before.
UPDATE headgate.task_gate SET is_done = false
WHERE is_done
    AND EXISTS (
        SELECT 1 FROM {rows:own(task text, signature text)}
        WHERE own.task = task_gate.task
            AND NOT EXISTS (
                SELECT 1 FROM headgate.task_gate AS known WHERE known.task = own.task AND known.signature = own.signature
            )
    )

-- name: note_gates
-- Note that these gates are alive. A row is written only after a third of the gate's life.
INSERT INTO headgate.task_gate (task, signature, first_seen, last_seen, is_done, is_newest)
SELECT task, signature, :now::bigint, :now::bigint, false, false
FROM {rows:own(task text, signature text)}
WHERE true
ORDER BY task
ON CONFLICT (task, signature) DO UPDATE SET last_seen = excluded.last_seen
WHERE task_gate.last_seen <= excluded.last_seen - :lives::bigint / 3

-- name: set_gates_back
-- Count gates that a clock which was ahead has noted as noted until now, in the same order. Else they would be alive, and
-- the newest, until the date of that clock.
UPDATE headgate.task_gate
SET first_seen = CASE WHEN first_seen > :now::bigint THEN first_seen - last_seen + :now::bigint - 1 ELSE first_seen END,
    last_seen = :now::bigint
WHERE task {any:tasks text} AND last_seen > :now::bigint + :lives::bigint

-- name: newest_changed
-- Mark the newest gate of each subject: of the gates that are alive, the one that was first noted last. Return the
-- subjects whose newest gate has changed.
UPDATE headgate.task_gate SET is_newest = NOT is_newest
WHERE task {any:tasks text}
    AND is_newest <> (
        signature = (
            SELECT signature FROM headgate.task_gate AS other
            WHERE other.task = task_gate.task AND other.last_seen > :now::bigint - :lives::bigint
            ORDER BY first_seen DESC, signature DESC
            LIMIT 1
        )
    )
RETURNING task

-- name: newest_gates
-- Return those of these gates that are the newest of their subjects.
SELECT task_gate.task, is_done
FROM headgate.task_gate
JOIN {rows:own(task text, signature text)} ON own.task = task_gate.task AND own.signature = task_gate.signature
WHERE is_newest

-- name: gates_done
-- Note that the backlog of these subjects has been moved to these gates, and no longer to others.
UPDATE headgate.task_gate SET is_done = (task_gate.signature = own.signature)
FROM {rows:own(task text, signature text)}
WHERE task_gate.task = own.task

-- name: lock_nodes
-- Lock all nodes, once none of them is in the middle of a claim.
SELECT id FROM headgate.node ORDER BY id {for update}
