-- Where one of these gates is new, the backlog will not stay where the others of its task would have it.
UPDATE headgate.task_gate SET is_done = false
WHERE is_done
    AND EXISTS (
        SELECT 1 FROM unnest(:tasks::text[], :signatures::text[]) AS own (task, signature)
        WHERE own.task = task_gate.task
            AND NOT EXISTS (
                SELECT 1 FROM headgate.task_gate AS known WHERE known.task = own.task AND known.signature = own.signature
            )
    )
