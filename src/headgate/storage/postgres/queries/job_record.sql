-- A job as people look at it.
job.id, job.task, job.queue, CASE WHEN job.state = 'blocked' THEN 'waiting' ELSE job.state END AS state, job.payload, job.priority, job.delayed, job.run_at, job.enqueued_at, job.expires_at,
job.attempt, job.fence, job.lost, job.node, job.started_at, job.finished_at, job.cancel_requested, job.result, job.error,
job.draws, job.headers, job.options,
CASE WHEN bucket.opens_at > :limit_now THEN bucket.opens_at END AS opens_at,
CASE WHEN bucket.opens_at > :limit_now THEN bucket.limit_name END AS limit_name,
bucket.key,
CASE
    WHEN job.waiting
    THEN coalesce(lane.waiting, 0) + coalesce((SELECT sum(jobs) FROM headgate.arrival WHERE lane = job.lane), 0)::bigint
    ELSE 0
END AS lane_waiting,
job.costs, job.terms, job.held, job.charged_at, job.uncharged,
job.unique_key, job.origin, job.audit, job.progress, job.state = 'blocked' AS is_blocked
