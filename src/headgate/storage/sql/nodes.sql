-- Nodes: processes that run jobs.

-- name: join_node
-- A node registers itself; one that is known stays as it is.
INSERT INTO headgate.node (id, name, pid, pid_space, process_started, boot_id, started_at, beat_at, queues, version)
VALUES (:id, :name, :pid, :pid_space, :process_started, :boot_id, :now, :now, :queues, :version)
ON CONFLICT (id) DO NOTHING

-- name: announce_port [sqlite]
-- Where a node hears of changes.
UPDATE node SET port = :port WHERE id = :id

-- name: ports [sqlite]
-- Where the nodes hear of changes, as one value: a group that adds jobs asks it at its commit.
SELECT json_group_array(port) FROM node WHERE port > 0

-- name: beat [postgres]
-- A node renews its lease; nothing is updated if it has been declared dead. It is committed without waiting for the disk.
WITH unsynced AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
)
UPDATE headgate.node SET beat = beat + 1, beat_at = :now, lingering = :lingering FROM unsynced
WHERE id = :id AND gone IS NULL

-- name: beat [sqlite]
UPDATE node SET beat = beat + 1, beat_at = :now, lingering = :lingering WHERE id = :id AND gone IS NULL

-- name: nodes
-- All nodes, with what tells whether their process is still there.
SELECT
    id, name, pid, started_at, beat_at, beat,
    (SELECT count(*) FROM headgate.job WHERE state = 'running' AND job.node = node.id) AS running,
    pid_space, process_started, boot_id, queues, version, lingering, gone
FROM headgate.node
ORDER BY started_at, id

-- part: has_arrived [postgres]
EXISTS (SELECT 1 FROM headgate.arrival WHERE jobs > 0)

-- part: has_arrived [sqlite]
false

-- name: upkeep
-- All nodes, as far as their leases are judged by it; each with whether jobs have expired, whether followers are left of
-- leaders that are final, and whether arrivals are to be merged, so that an idle node asks a single statement a second.
SELECT
    id, pid, beat, pid_space, process_started, boot_id, gone,
    EXISTS (SELECT 1 FROM headgate.job WHERE waiting AND expires_at <= :now)
    OR EXISTS (SELECT 1 FROM headgate.job WHERE state = 'blocked' AND expires_at <= :now)
    OR EXISTS (SELECT 1 FROM headgate.job WHERE waiting AND give_up_at <= :now) AS has_expired,
    EXISTS (SELECT 1 FROM headgate.ended_leader) AS has_followers,
    @has_arrived AS has_arrived
FROM headgate.node

-- name: cancels
-- The running jobs of a node that a user wants cancelled.
SELECT id FROM headgate.job WHERE state = 'running' AND node = :node AND cancel_requested

-- name: lock_node
-- A node that has left or died, unless it has sent a heartbeat since :beat; locked when it is not in the middle of a claim.
SELECT gone FROM headgate.node WHERE id = :id AND (:beat::bigint IS NULL OR beat = :beat) {for update}

-- name: mark_gone
-- A node is gone; jobs of its that somebody else has locked are taken back later.
UPDATE headgate.node SET gone = :gone WHERE id = :id

-- name: remove_node
-- A node is gone.
DELETE FROM headgate.node WHERE id = :id
