-- A waiting job asks for what another one asks for that replaces it, as if it had never been tried.
UPDATE job
SET payload = json_extract(:new, '$[3]'),
    queue = json_extract(:new, '$[2]'),
    priority = json_extract(:new, '$[4]'),
    delayed = json_extract(:new, '$[5]'),
    run_at = json_extract(:new, '$[6]'),
    expires_at = json_extract(:new, '$[8]'),
    draws = json_extract(:new, '$[9]'),
    costs = json_extract(:new, '$[10]'),
    headers = json_extract(:new, '$[11]'),
    options = json_extract(:new, '$[12]'),
    terms = json_extract(:new, '$[13]'),
    give_up_at = CASE WHEN state = 'waiting' THEN json_extract(:new, '$[15]') END,
    audit = json_extract(:new, '$[19]'),
    gate = coalesce(nullif(json_extract(:new, '$[21]'), ''), task),
    lane = :lane, held = :held, passed = 0, attempt = 0, lost = 0, fence = fence + 1, error = NULL, progress = NULL
WHERE seq = :seq AND state IN ('waiting', 'blocked')
