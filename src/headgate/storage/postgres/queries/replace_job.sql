-- A waiting job asks for what another one asks for that replaces it, as if it had never been tried. Its fence grows, so
-- that a claim that has read it before does not start it as it was.
UPDATE headgate.job
SET payload = :payload, queue = :queue, priority = :priority::smallint, delayed = :delayed::boolean, run_at = :run_at::bigint,
    expires_at = :expires_at::bigint, give_up_at = CASE WHEN state = 'waiting' THEN :give_up_at::bigint END, draws = :draws, costs = :costs, headers = :headers,
    options = :options, terms = :terms, gate = :gate, audit = :audit::smallint, lane = :lane::text, held = :held::bigint,
    passed = 0, attempt = 0, lost = 0, fence = fence + 1, error = NULL, progress = NULL
WHERE id = :id
