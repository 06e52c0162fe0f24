-- Of each of these batches, what one of its jobs asks of its limits, if they ask anything.
SELECT json_group_array(json_array(job.batch, json(job.draws), json(job.terms)))
FROM json_each(:batches) AS wanted
JOIN job ON job.seq = (SELECT seq FROM job WHERE batch IS NOT NULL AND batch = wanted.value LIMIT 1)
WHERE job.terms IS NOT NULL
