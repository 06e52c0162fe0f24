-- What those of these jobs ask for that wait, in the order of their ids.
SELECT json_group_array(json_array(queue, json(draws), json(terms), held | passed, delayed, run_at))
FROM (SELECT * FROM job WHERE seq IN (SELECT value FROM json_each(:seqs)) AND +state = 'waiting' ORDER BY seq)
