-- A node registers itself.
INSERT INTO headgate.node (id, name, pid, pid_space, process_started, boot_id, started_at, beat_at)
VALUES (:id, :name, :pid, :pid_space, :process_started, :boot_id, :now, :now)
ON CONFLICT (id) DO NOTHING
