-- A node registers itself.
INSERT INTO headgate.node (id, name, pid, pid_space, process_started, boot_id, started_at, beat_at, queues, version)
VALUES (:id, :name, :pid, :pid_space, :process_started, :boot_id, :now, :now, :queues, :version)
ON CONFLICT (id) DO NOTHING
