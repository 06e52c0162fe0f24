-- What cancelling, retrying and moving read of a job.
id, state, queue, draws, terms, held, passed, costs IS NOT NULL AS has_costs
