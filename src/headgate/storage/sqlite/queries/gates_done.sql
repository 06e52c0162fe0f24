-- The backlog of these gates has been moved.
UPDATE task_gate SET is_done = 1
FROM json_each(:gates) AS own
WHERE task = json_extract(own.value, '$[0]') AND signature = json_extract(own.value, '$[1]')
