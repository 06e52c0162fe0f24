-- The backlog of these gates has been moved: it is where they would have it, and no other gate of their tasks.
UPDATE task_gate SET is_done = (signature = json_extract(own.value, '$[1]'))
FROM json_each(:gates) AS own
WHERE task = json_extract(own.value, '$[0]')
