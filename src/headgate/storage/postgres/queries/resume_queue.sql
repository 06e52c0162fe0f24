-- End the pause of a queue.
DELETE FROM headgate.paused_queue WHERE queue = :queue
