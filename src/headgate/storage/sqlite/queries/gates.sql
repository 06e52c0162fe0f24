-- The newest gate of each subject.
SELECT json_group_object(task, signature) FROM task_gate WHERE is_newest
