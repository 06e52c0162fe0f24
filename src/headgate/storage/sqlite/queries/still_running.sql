-- Which of these attempts are running under the node; :endings is an array of [id, fence]. What a job draws on is read
-- only where it is needed: of jobs with terms, and of all :with_draws.
-- CROSS JOIN and the plus signs keep SQLite from walking all running jobs for each ending.
SELECT json_group_array(
    json_array(
        job.seq, job.id, job.fence, job.queue,
        CASE WHEN job.terms IS NOT NULL OR :with_draws THEN json(job.draws) ELSE json('[]') END,
        job.cancel_requested, json(job.terms), job.held, job.passed, job.lost, job.uncharged
    )
)
FROM json_each(:endings) AS ended
CROSS JOIN job ON job.id = json_extract(ended.value, '$[0]')
WHERE +job.state = 'running' AND +job.node = :node AND job.fence = json_extract(ended.value, '$[1]')
