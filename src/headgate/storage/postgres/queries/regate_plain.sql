-- Waiting jobs, which are locked, ask for something else from now on, and wait in other lanes.
UPDATE headgate.job
SET draws = new_draws, costs = new_costs, terms = new_terms, lane = new_lane, gate = coalesce(nullif(new_gate, ''), gate)
FROM unnest(:ids::text[], :draws::text[], :costs::text[], :terms::text[], :lanes::bytea[], :gates::text[])
    AS asked (asked_id, new_draws, new_costs, new_terms, new_lane, new_gate)
WHERE job.id = asked_id
