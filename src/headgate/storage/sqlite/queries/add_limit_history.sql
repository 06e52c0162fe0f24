-- Add what was charged to what is kept of the same curves; :steps is an array of [step, limit, key or null, at, used].
INSERT INTO limit_history (step, limit_name, of_all, key, at, used)
SELECT
    json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]') IS NULL,
    ifnull(json_extract(value, '$[2]'), ''), json_extract(value, '$[3]'), json_extract(value, '$[4]')
FROM json_each(:steps)
WHERE true
ON CONFLICT (step, limit_name, of_all, key, at) DO UPDATE SET used = used + excluded.used
