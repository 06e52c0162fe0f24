-- Let no claim take a job of a queue; nothing is inserted if it is paused already.
INSERT INTO headgate.paused_queue (queue, paused_at) VALUES (:queue, :now)
ON CONFLICT (queue) DO NOTHING
