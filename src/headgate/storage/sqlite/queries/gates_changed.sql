-- Where one of these gates is new, the backlog will not stay where the others of its task would have it.
UPDATE task_gate SET is_done = 0
WHERE is_done
    AND EXISTS (
        SELECT 1 FROM json_each(:gates) AS own
        WHERE json_extract(own.value, '$[0]') = task
            AND NOT EXISTS (
                SELECT 1 FROM task_gate AS known
                WHERE known.task = json_extract(own.value, '$[0]') AND known.signature = json_extract(own.value, '$[1]')
            )
    )
