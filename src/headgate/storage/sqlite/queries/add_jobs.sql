-- Store new jobs that are plain, each in its lane; fails as a whole if one of the ids is stored already.
-- Most jobs are so, and each value that is read from their JSON costs 0.3 µs.
INSERT INTO job (
    id, task, queue, payload, priority, delayed, run_at, enqueued_at, expires_at, draws, costs, headers, options, gate,
    lane
)
SELECT
    json_extract(value, '$[0]'),
    json_extract(value, '$[1]'),
    json_extract(value, '$[2]'),
    json_extract(value, '$[3]'),
    json_extract(value, '$[4]'),
    json_extract(value, '$[5]'),
    json_extract(value, '$[6]'),
    json_extract(value, '$[7]'),
    json_extract(value, '$[8]'),
    json_extract(value, '$[9]'),
    json_extract(value, '$[10]'),
    json_extract(value, '$[11]'),
    json_extract(value, '$[12]'),
    coalesce(nullif(json_extract(value, '$[21]'), ''), json_extract(value, '$[1]')),
    (
        SELECT id FROM lane
        WHERE queue = json_extract(value, '$[2]') AND draws = json_extract(value, '$[9]') AND variant = ''
    )
FROM json_each(:jobs)
