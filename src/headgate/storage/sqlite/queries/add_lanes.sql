-- Make sure that every lane the new jobs need exists; :lanes is an array of [queue, draws, variant, …].
INSERT INTO lane (queue, draws, variant)
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]')
FROM json_each(:lanes)
WHERE true
ON CONFLICT (queue, draws, variant) DO NOTHING
