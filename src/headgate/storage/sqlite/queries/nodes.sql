-- All nodes, with what tells whether their process is still there.
SELECT json_group_array(
    json_array(
        id, name, pid, started_at, beat_at, beat, (SELECT count(*) FROM job WHERE state = 'running' AND job.node = node.id),
        pid_space, process_started, boot_id, port, json(queues), version, json(lingering)
    )
)
FROM node
