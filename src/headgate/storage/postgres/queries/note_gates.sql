-- Gates of this release, as seen now. The first gate that a task ever had needs no backlog moved.
INSERT INTO headgate.task_gate (task, signature, first_seen, last_seen, is_done)
SELECT
    task, signature, :now::bigint, :now::bigint,
    NOT EXISTS (SELECT 1 FROM headgate.task_gate AS older WHERE older.task = own.task)
FROM unnest(:tasks::text[], :signatures::text[]) AS own (task, signature)
ORDER BY task
ON CONFLICT (task, signature) DO UPDATE SET last_seen = excluded.last_seen
