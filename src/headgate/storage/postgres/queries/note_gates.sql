-- Gates of this release, as seen now. Of many nodes that say so, one in a while writes it.
INSERT INTO headgate.task_gate (task, signature, first_seen, last_seen, is_done, is_newest)
SELECT task, signature, :now::bigint, :now::bigint, false, false
FROM unnest(:tasks::text[], :signatures::text[]) AS own (task, signature)
ORDER BY task
ON CONFLICT (task, signature) DO UPDATE SET last_seen = excluded.last_seen
WHERE task_gate.last_seen <= excluded.last_seen - :lives::bigint / 3
