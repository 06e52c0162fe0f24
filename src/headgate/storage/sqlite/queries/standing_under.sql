-- Jobs that are not final under these unique keys; :keys is an array of [task, unique key].
SELECT json_group_array(
    json_array(
        seq, id, state, queue, json(draws), json(terms), held, passed, costs IS NOT NULL, delayed, run_at, task, unique_key
    )
)
FROM (
    SELECT job.* FROM json_each(:keys) AS key
    JOIN job ON job.task = json_extract(key.value, '$[0]') AND job.unique_key = json_extract(key.value, '$[1]')
    WHERE job.unique_key IS NOT NULL AND job.state IN ('waiting', 'blocked')
    UNION ALL
    SELECT job.* FROM json_each(:keys) AS key
    JOIN job ON job.task = json_extract(key.value, '$[0]') AND job.unique_key = json_extract(key.value, '$[1]')
    WHERE job.unique_key IS NOT NULL AND job.state = 'running'
)
