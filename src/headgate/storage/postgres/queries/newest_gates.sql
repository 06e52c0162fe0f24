-- Subjects of whose gates this is the newest one that lives, and whether their backlog has been moved to it.
SELECT task, is_done
FROM headgate.task_gate JOIN unnest(:tasks::text[], :signatures::text[]) AS own (task, signature) USING (task, signature)
WHERE is_newest
