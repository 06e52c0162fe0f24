-- Make sure that every lane the new jobs need exists; :lanes is an array of [id, queue, draws, variant, …].
INSERT INTO lane (id, queue, draws, variant)
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'), json_extract(value, '$[3]')
FROM json_each(:lanes)
WHERE true
ON CONFLICT (id) DO NOTHING
