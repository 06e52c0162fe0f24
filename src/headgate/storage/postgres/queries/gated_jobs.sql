-- Waiting jobs of these tasks that carry other gates than these, by id; :limits leaves only those in lanes that draw on a limit that is not among them.
SELECT id, task, queue, payload, headers, draws, costs, terms, gate
FROM headgate.job
WHERE id > :after AND (waiting OR state = 'blocked') AND task = ANY(:tasks::text[])
    AND NOT gate = ANY(@known)
    AND (
        :limits::text[] IS NULL
        OR EXISTS (
            SELECT 1 FROM json_array_elements(draws::json) AS draw WHERE NOT draw ->> 0 = ANY(:limits::text[])
        )
    )
ORDER BY id
LIMIT :count
