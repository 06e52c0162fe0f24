-- Those of these jobs that wait and are of these tasks, by id.
SELECT id, task, queue, payload, headers, draws, costs, terms, gate
FROM headgate.job
WHERE id = ANY(:ids::text[]) AND finished_at IS NULL AND node IS NULL AND task = ANY(:tasks::text[])
ORDER BY id
