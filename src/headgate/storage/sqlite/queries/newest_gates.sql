-- Subjects of whose gates this is the newest one that lives; with :only_to_do, those whose backlog is not moved to it.
SELECT json_group_array(task)
FROM task_gate JOIN json_each(:gates) AS own
    ON task = json_extract(own.value, '$[0]') AND signature = json_extract(own.value, '$[1]')
WHERE (NOT :only_to_do OR NOT is_done) AND is_newest
