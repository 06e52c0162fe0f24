-- The lane of a queue, its draws and variant, made if it is not there.
INSERT INTO lane (queue, draws, variant) VALUES (:queue, :draws, :variant)
ON CONFLICT (queue, draws, variant) DO UPDATE SET queue = excluded.queue
RETURNING id
