-- The blocked followers of these leaders.
SELECT json_group_array(
    json_array(seq, id, follows, coalesce(json_extract(origin, '$.on'), 'success'), queue, json(draws), json(terms), run_at)
)
FROM job WHERE follows IN (SELECT value FROM json_each(:leaders)) AND +state = 'blocked'
