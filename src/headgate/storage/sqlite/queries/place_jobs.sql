-- New jobs that are not to wait in their lanes yet, or never; :jobs is an array of [id, state, error].
UPDATE job
SET state = json_extract(placed.value, '$[1]'), waiting = false,
    error = json_extract(placed.value, '$[2]'),
    finished_at = CASE WHEN json_extract(placed.value, '$[1]') <> 'blocked' THEN enqueued_at END,
    give_up_at = NULL
FROM json_each(:jobs) AS placed
WHERE job.id = json_extract(placed.value, '$[0]')
