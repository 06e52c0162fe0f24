-- Tasks of whose gates this is the newest one that lives; with :only_to_do, those whose backlog is not moved to it.
SELECT json_group_array(task)
FROM task_gate JOIN json_each(:gates) AS own
    ON task = json_extract(own.value, '$[0]') AND signature = json_extract(own.value, '$[1]')
WHERE (NOT :only_to_do OR NOT is_done)
    AND NOT EXISTS (
        SELECT 1 FROM task_gate AS other
        WHERE other.task = task_gate.task AND other.last_seen > :now - :lives
            AND (other.first_seen, other.signature) > (task_gate.first_seen, task_gate.signature)
    )
