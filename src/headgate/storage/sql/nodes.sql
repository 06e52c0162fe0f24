-- Nodes: processes that run jobs.

-- part: is_running [postgres]
-- Running jobs. The ids are an array, not a join, so they are read by the primary key, whatever the statistics say.
job.id = ANY(ARRAY(SELECT unnest(claim.jobs) FROM headgate.claim)) AND job.state = 'running'

-- part: is_running [sqlite]
job.state = 'running'

-- part: runs_on(node, since) [postgres]
-- The jobs that run on a node, in its claims since then.
job.id = ANY(ARRAY(SELECT unnest(claim.jobs) FROM headgate.claim WHERE claim.node = $node AND claim.at >= $since))
AND job.state = 'running' AND job.node = $node

-- part: runs_on(node, since) [sqlite]
job.state = 'running' AND job.node = $node

-- name: forget_claims [postgres]
-- Delete the claims of a node since then of which no job runs any more: what starts a job again is another claim.
DELETE FROM headgate.claim
WHERE node = :node AND at >= :since
    AND NOT EXISTS (
        SELECT 1 FROM headgate.job WHERE job.id = ANY(claim.jobs) AND job.state = 'running' AND job.node = claim.node
    )

-- name: remove_claims [postgres]
-- Delete the claims of a node, which is locked and of which no job runs any more.
DELETE FROM headgate.claim WHERE node = :node

-- name: join_node
-- Register a node; a registered node stays as it is.
INSERT INTO headgate.node (
    id, name, pid, pid_space, process_started, boot_id, started_at, beat_at, queues, slots, is_quiet, labels, tasks,
    version, release
) VALUES (
    :id, :name, :pid, :pid_space, :process_started, :boot_id, :now, :now, :queues, :slots, :is_quiet, :labels, :tasks,
    :version, :release
)
ON CONFLICT (id) DO NOTHING

-- name: add_deploy
-- Note that a release is deployed, if the last one was another and no other node runs it: a node that restarts during a
-- rolling deploy is none. Two nodes that start at the same moment may both do it.
INSERT INTO headgate.deploy (at, release)
SELECT :now::bigint, :release::text
WHERE coalesce((SELECT release FROM headgate.deploy ORDER BY at DESC LIMIT 1), '') <> :release
    AND NOT EXISTS (SELECT 1 FROM headgate.node WHERE release = :release AND id <> :node AND gone IS NULL)

-- name: prune_deploys
DELETE FROM headgate.deploy WHERE at < :before

-- name: deploys
-- Return the last deploys since then, the last one first.
SELECT at, release FROM headgate.deploy WHERE at >= :since ORDER BY at DESC LIMIT :count

-- name: announce_port [sqlite]
-- Store the port on which a node receives wake-ups.
UPDATE node SET port = :port WHERE id = :id

-- name: ports [sqlite]
-- Return the ports on which nodes receive wake-ups, as one value: a group of additions reads it when it commits.
SELECT json_group_array(port) FROM node WHERE port > 0

-- name: beat [postgres]
-- Renew the lease of a node; changes no row if the node was declared dead. The commit does not wait for the disk.
WITH @unsynced
UPDATE headgate.node
SET beat = beat + 1, beat_at = :now, lingering = :lingering, is_stopping = is_stopping OR :is_stopping,
    tasks = coalesce(:tasks::text, tasks)
FROM unsynced
WHERE id = :id AND gone IS NULL

-- name: beat [sqlite]
UPDATE node
SET beat = beat + 1, beat_at = :now, lingering = :lingering, is_stopping = is_stopping OR :is_stopping,
    tasks = coalesce(:tasks, tasks)
WHERE id = :id AND gone IS NULL

-- name: nodes
-- Return all nodes, with the facts that show whether their processes still run.
SELECT
    id, name, pid, started_at, beat_at, beat,
    (SELECT count(*) FROM headgate.job WHERE @runs_on(node.id, 0)) AS running,
    pid_space, process_started, boot_id, queues, slots, is_quiet, is_stopping, labels, version, release, lingering,
    gone
FROM headgate.node
ORDER BY started_at, id

-- name: declarations
-- Return the tasks that nodes declare which may claim, by queue, and what else decides whether they run them.
SELECT DISTINCT tasks, queues, labels, is_quiet FROM headgate.node
WHERE gone IS NULL AND NOT is_stopping AND id <> :other_than

-- name: declare
UPDATE headgate.node SET tasks = :tasks::text WHERE id = :id AND gone IS NULL

-- part: has_arrived [postgres]
coalesce((SELECT jobs > 0 FROM headgate.arrival WHERE id >= :arrival_floor AND jobs > 0 ORDER BY id LIMIT 1), false)

-- part: has_arrived [sqlite]
false

-- name: node_update
-- Return the columns of all nodes by which their leases are judged; each with whether jobs have expired, whether final
-- leaders have followers left, and whether arrivals have to be merged, so that an idle node runs one statement a
-- second. For one node, :node, also what it is set to do.
SELECT
    id, pid, beat, pid_space, process_started, boot_id, gone,
    CASE WHEN id = :node THEN queues END AS queues,
    CASE WHEN id = :node THEN name END AS name,
    slots, is_quiet, is_stopping,
    EXISTS (SELECT 1 FROM headgate.job WHERE waiting AND expires_at <= :now)
    OR EXISTS (SELECT 1 FROM headgate.job WHERE blocked AND expires_at <= :now)
    OR EXISTS (SELECT 1 FROM headgate.job WHERE waiting AND give_up_at <= :now) AS has_expired,
    EXISTS (SELECT 1 FROM headgate.ended_leader) AS has_followers,
    @has_arrived AS has_arrived
FROM headgate.node

-- name: lock_node_controls
-- Lock a node that has neither left nor died, and return what it is set to do.
SELECT queues, slots, is_quiet, is_stopping FROM headgate.node WHERE id = :id AND gone IS NULL {for update}

-- name: set_node
-- Change what a node is set to do.
UPDATE headgate.node SET queues = :queues, slots = :slots, is_quiet = :is_quiet, is_stopping = :is_stopping
WHERE id = :id AND gone IS NULL

-- name: rename_node
-- Give a node that has neither left nor died another name. Changes no row if it has that name.
UPDATE headgate.node SET name = :name WHERE id = :id AND gone IS NULL AND name <> :name

-- name: cancels
-- Return those of these jobs that run on a node and whose cancellation was requested.
SELECT id FROM headgate.job
WHERE id {any:ids job_id} AND {no index}state = 'running' AND {no index}node = :node AND cancel_requested

-- part: starts_by_node [postgres]
headgate.claim WHERE true

-- part: starts_by_node [sqlite]
job WHERE state = 'running'

-- name: missing_nodes
-- Return the nodes that have started jobs and that are not there, with how many jobs run on each, and one of them. The
-- nodes are read one after another, by index, so that it costs little if there are many jobs.
WITH RECURSIVE owner (id) AS (
    SELECT (SELECT min(node) FROM @starts_by_node)
    UNION ALL
    SELECT (SELECT min(node) FROM @starts_by_node AND node > owner.id) FROM owner WHERE id IS NOT NULL
)
SELECT
    id,
    (SELECT count(*) FROM headgate.job WHERE @runs_on(owner.id, 0)) AS jobs,
    (SELECT min(job.id) FROM headgate.job WHERE @runs_on(owner.id, 0)) AS job
FROM owner
WHERE id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM headgate.node WHERE node.id = owner.id)

-- name: add_missing_node
-- Add a node that is not there as one that has died, unless it was recovered meanwhile.
INSERT INTO headgate.node (id, name, pid, pid_space, process_started, boot_id, started_at, beat_at, gone)
SELECT :id::text, :id::text, 0, '', '', '', :now::bigint, :now::bigint, 'dead'
WHERE EXISTS (SELECT 1 FROM @starts_by_node AND node = :id::text)
ON CONFLICT (id) DO NOTHING

-- name: lock_node
-- Lock a node that has left or died, once it is not in the middle of a claim; no row if its heartbeat is newer than
-- :beat.
SELECT gone FROM headgate.node WHERE id = :id AND (:beat::bigint IS NULL OR beat = :beat) {for update}

-- name: mark_gone
-- Mark a node as gone; its jobs that other transactions have locked are taken back later.
UPDATE headgate.node SET gone = :gone WHERE id = :id

-- name: remove_node
-- Delete a node that is gone.
DELETE FROM headgate.node WHERE id = :id
