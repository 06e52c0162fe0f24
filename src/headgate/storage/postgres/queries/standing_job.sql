-- What is read of a job that stands under a unique key.
id, state, queue, draws, terms, held, passed, costs IS NOT NULL AS has_costs, delayed, run_at
