-- Waiting jobs of these tasks that carry other gates than these, by id; :limits leaves only those in lanes that draw on a limit that is not among them.
SELECT json_group_array(json_array(id, task, queue, CAST(payload AS TEXT), json(headers), json(draws), json(costs), json(terms), gate))
FROM (
    SELECT * FROM job
    WHERE id > :after AND (waiting OR state = 'blocked') AND task IN (SELECT value FROM json_each(:tasks))
        AND gate NOT IN (SELECT value FROM json_each(:gates))
        AND (
            :limits IS NULL
            OR (state = 'blocked' AND @draws_unknown_limits)
            OR waiting AND lane IN (
                SELECT id FROM lane
                WHERE waiting > 0
                    AND EXISTS (
                        SELECT 1 FROM json_each(draws) AS draw
                        WHERE json_extract(draw.value, '$[0]') NOT IN (SELECT value FROM json_each(:limits))
                    )
            )
        )
    ORDER BY id
    LIMIT :count
)
