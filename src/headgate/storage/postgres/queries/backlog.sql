-- How many jobs wait in the lanes of a queue: those that lanes count, and what has arrived since.
SELECT greatest(
    0,
    (SELECT coalesce(sum(waiting), 0) FROM headgate.lane WHERE queue = :queue)
    + (SELECT coalesce(sum(jobs), 0) FROM headgate.arrival WHERE queue = :queue)
)::bigint
