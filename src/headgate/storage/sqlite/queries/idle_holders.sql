-- Jobs that hold permits of a bucket without running.
SELECT json_group_array(json_array(seq, id, state, lane, queue, json(draws), json(terms), held, passed, costs IS NOT NULL))
FROM job
WHERE held <> 0 AND state <> 'running'
    AND EXISTS (
        SELECT 1 FROM json_each(draws) AS draw
        WHERE json_extract(draw.value, '$[0]') = :limit AND json_extract(draw.value, '$[1]') = :key
    )
