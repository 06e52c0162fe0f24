-- Make sure that every lane the new jobs need exists. :jobs is an array of NewJob arrays.
INSERT INTO lane (queue, draws)
SELECT DISTINCT json_extract(value, '$[2]'), json_extract(value, '$[9]')
FROM json_each(:jobs)
WHERE true
ON CONFLICT (queue, draws) DO NOTHING
