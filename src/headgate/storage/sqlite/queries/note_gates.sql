-- Gates of this release, as seen now; :gates is an array of [subject, gate]. Of many nodes that say so, one in a
-- while writes it.
INSERT INTO task_gate (task, signature, first_seen, last_seen, is_done, is_newest)
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), :now, :now, 0, 0
FROM json_each(:gates)
WHERE true
ON CONFLICT (task, signature) DO UPDATE SET last_seen = excluded.last_seen
WHERE last_seen <= excluded.last_seen - :lives / 3
