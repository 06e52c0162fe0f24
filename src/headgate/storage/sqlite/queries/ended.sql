-- Those of these jobs, which have just become final, that others follow or that are in a batch.
SELECT json_group_array(json_array(job.id, state, json(CASE WHEN is_followed THEN 'true' ELSE 'false' END), batch))
FROM json_each(:seqs) AS ended
JOIN job ON job.seq = ended.value
WHERE is_followed OR (origin IS NOT NULL AND batch IS NOT NULL)
