-- All nodes, with what tells whether their process is still there.
SELECT
    id, name, pid, started_at, beat_at, beat,
    (SELECT count(*) FROM headgate.job WHERE state = 'running' AND job.node = node.id) AS running, pid_space, process_started, boot_id,
    queues, version, lingering, gone
FROM headgate.node
ORDER BY started_at, id
