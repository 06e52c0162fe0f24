-- How many jobs wait in the lanes of a queue.
SELECT coalesce(sum(waiting), 0) FROM lane WHERE queue = :queue
