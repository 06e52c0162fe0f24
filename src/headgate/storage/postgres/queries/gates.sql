-- The newest gate of each subject.
SELECT task, signature FROM headgate.task_gate WHERE is_newest
