-- A node registers itself.
INSERT INTO node (id, name, pid, pid_space, process_started, boot_id, port, started_at, beat_at)
VALUES (:id, :name, :pid, :pid_space, :process_started, :boot_id, :port, :now, :now)
