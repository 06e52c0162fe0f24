-- A node registers itself; one that is known stays as it is.
INSERT INTO node (id, name, pid, pid_space, process_started, boot_id, port, started_at, beat_at, queues, version)
VALUES (:id, :name, :pid, :pid_space, :process_started, :boot_id, :port, :now, :now, :queues, :version)
ON CONFLICT (id) DO NOTHING
