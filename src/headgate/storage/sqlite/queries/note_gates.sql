-- Gates of this release, as seen now; :gates is an array of [task, signature]. The first gate that a task ever had needs
-- no backlog moved.
INSERT INTO task_gate (task, signature, first_seen, last_seen, is_done)
SELECT
    json_extract(value, '$[0]'),
    json_extract(value, '$[1]'),
    :now,
    :now,
    NOT EXISTS (SELECT 1 FROM task_gate WHERE task = json_extract(value, '$[0]'))
FROM json_each(:gates)
WHERE true
ON CONFLICT (task, signature) DO UPDATE SET last_seen = excluded.last_seen
