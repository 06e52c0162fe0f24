-- Waiting jobs that ask for the same under another gate.
UPDATE headgate.job SET gate = stays.new_gate
FROM unnest(:ids::text[], :draws::text[], :gates::text[]) AS stays (id, draws_before, new_gate)
WHERE job.id = stays.id AND finished_at IS NULL AND node IS NULL AND draws = draws_before
