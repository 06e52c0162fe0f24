-- These jobs, which have just become final.
SELECT json_group_array(json_array(job.id, state, json(CASE WHEN is_followed THEN 'true' ELSE 'false' END), batch))
FROM json_each(:seqs) AS ended
JOIN job ON job.seq = ended.value
