-- Make sure that every lane the new jobs need exists; :lanes is an array of [queue, draws, …].
INSERT INTO lane (queue, draws)
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]')
FROM json_each(:lanes)
WHERE true
ON CONFLICT (queue, draws) DO NOTHING
