-- The backlog of these gates has been moved: it is where they would have it, and no other gate of their tasks.
UPDATE headgate.task_gate SET is_done = (task_gate.signature = own.signature)
FROM unnest(:tasks::text[], :signatures::text[]) AS own (task, signature)
WHERE task_gate.task = own.task
