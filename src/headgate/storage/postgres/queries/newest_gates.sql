-- Tasks of whose gates this is the newest one that lives, and whether their backlog has been moved to it.
SELECT task, is_done
FROM headgate.task_gate JOIN unnest(:tasks::text[], :signatures::text[]) AS own (task, signature) USING (task, signature)
WHERE NOT EXISTS (
    SELECT 1 FROM headgate.task_gate AS other
    WHERE other.task = task_gate.task AND other.last_seen > :now::bigint - :lives::bigint
        AND (other.first_seen, other.signature) > (task_gate.first_seen, task_gate.signature)
)
