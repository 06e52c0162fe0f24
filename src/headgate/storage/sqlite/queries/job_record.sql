-- A job as people look at it.
job.id, job.task, job.queue, CASE WHEN job.state = 'blocked' THEN 'waiting' ELSE job.state END, CAST(job.payload AS TEXT), job.priority,
json(CASE WHEN job.delayed THEN 'true' ELSE 'false' END), job.run_at, job.enqueued_at, job.expires_at,
job.attempt, job.fence, job.lost, job.node, job.started_at, job.finished_at,
json(CASE WHEN job.cancel_requested THEN 'true' ELSE 'false' END), CAST(job.result AS TEXT), json(job.error),
json(job.draws), json(job.headers), json(job.options),
CASE WHEN bucket.opens_at > :limit_now THEN bucket.opens_at END,
CASE WHEN bucket.opens_at > :limit_now THEN json_array(bucket.limit_name, bucket.key) END,
CASE WHEN job.state = 'waiting' THEN coalesce(lane.waiting, 0) ELSE 0 END,
json(job.costs), json(job.terms), job.held, job.charged_at, job.uncharged,
job.unique_key, json(job.origin), job.audit, json(job.progress), json(CASE WHEN job.state = 'blocked' THEN 'true' ELSE 'false' END)
