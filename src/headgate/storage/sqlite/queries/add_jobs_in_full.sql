-- Store new jobs, each in its lane, or final if it was rejected; fails as a whole if one of the ids is stored already.
INSERT INTO job (
    id, task, queue, payload, priority, delayed, run_at, enqueued_at, expires_at, draws, costs, headers, options, terms,
    give_up_at, unique_key, origin, follows, batch, schedule, audit, gate, lane, state, waiting, error, finished_at
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
    json_extract(value, '$[13]'),
    json_extract(value, '$[15]'),
    json_extract(value, '$[17]'),
    json_extract(value, '$[18]'),
    json_extract(value, '$[18].follows'),
    json_extract(value, '$[18].batch'),
    json_extract(value, '$[18].schedule'),
    json_extract(value, '$[19]'),
    coalesce(nullif(json_extract(value, '$[21]'), ''), json_extract(value, '$[1]')),
    (
        SELECT id FROM lane
        WHERE queue = json_extract(value, '$[2]') AND draws = json_extract(value, '$[9]')
            AND variant = json_extract(value, '$[14]')
    ),
    CASE
        WHEN json_extract(value, '$[16]') IS NULL THEN 'waiting'
        WHEN json_extract(value, '$[13].cancels') THEN 'cancelled'
        ELSE 'failed'
    END,
    json_extract(value, '$[16]') IS NULL,
    json_extract(value, '$[16]'),
    CASE WHEN json_extract(value, '$[16]') IS NOT NULL THEN json_extract(value, '$[7]') END
FROM json_each(:jobs)
