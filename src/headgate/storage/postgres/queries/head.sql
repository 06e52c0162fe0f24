-- What a claim reads of a job.
job.id AS seq, job.lane, job.id, job.task, job.queue, job.payload, job.priority, job.run_at, job.attempt, job.fence, job.lost,
job.enqueued_at, job.expires_at, job.costs, job.headers, job.options, job.origin, job.terms, job.held, job.passed, job.give_up_at,
CASE WHEN job.held <> 0 THEN job.draws END AS draws, job.gate
