-- The gates of releases, by their subjects.

-- name: gates
SELECT task, signature FROM headgate.task_gate WHERE is_newest

-- name: gates_changed
-- A gate that is new leaves the backlog of its subject to be moved, whoever has moved it before.
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
-- These gates live. They are not written each time: a third of their lives is soon enough.
INSERT INTO headgate.task_gate (task, signature, first_seen, last_seen, is_done, is_newest)
SELECT task, signature, :now::bigint, :now::bigint, false, false
FROM {rows:own(task text, signature text)}
WHERE true
ORDER BY task
ON CONFLICT (task, signature) DO UPDATE SET last_seen = excluded.last_seen
WHERE task_gate.last_seen <= excluded.last_seen - :lives::bigint / 3

-- name: newest_changed
-- The newest gate of a subject is the one that was seen for the first time last, of those that live.
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

-- name: newest_gates
-- Those of these gates that are the newest of their subjects.
SELECT task_gate.task, is_done
FROM headgate.task_gate
JOIN {rows:own(task text, signature text)} ON own.task = task_gate.task AND own.signature = task_gate.signature
WHERE is_newest

-- name: gates_done
-- The backlog of these subjects is where these gates would have it, and no longer where others would.
UPDATE headgate.task_gate SET is_done = (task_gate.signature = own.signature)
FROM {rows:own(task text, signature text)}
WHERE task_gate.task = own.task

-- name: lock_nodes
-- All nodes, once none of them is in the middle of a claim.
SELECT id FROM headgate.node ORDER BY id {for update}
