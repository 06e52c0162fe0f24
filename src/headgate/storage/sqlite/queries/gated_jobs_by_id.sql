-- Those of these jobs that wait and are of these tasks, by id.
SELECT json_group_array(json_array(id, task, queue, payload, json(headers), json(draws), json(costs), json(terms), gate))
FROM (
    SELECT job.* FROM json_each(:ids) AS wanted JOIN job ON job.id = wanted.value
    WHERE +job.state IN ('waiting', 'blocked') AND job.task IN (SELECT value FROM json_each(:tasks))
    ORDER BY job.id
)
