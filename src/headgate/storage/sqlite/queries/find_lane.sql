-- The lane of a queue and its draws, made if it is not there.
INSERT INTO lane (queue, draws) VALUES (:queue, :draws)
ON CONFLICT (queue, draws) DO UPDATE SET queue = excluded.queue
RETURNING id
