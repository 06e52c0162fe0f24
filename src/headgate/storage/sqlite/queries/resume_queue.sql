-- End the pause of a queue.
DELETE FROM paused_queue WHERE queue = :queue
