-- Jobs that wait again have arrived in their lanes; a negative number have left it.
INSERT INTO headgate.arrival (lane, queue, draws, variant, jobs, is_ready, since, wakes_at)
SELECT lane, queue, draws, variant, jobs, is_ready, :limit_now::bigint, wakes_at
FROM unnest(
    :lanes::bytea[], :queues::text[], :draws::text[], :variants::text[], :jobs::integer[], :are_ready::boolean[],
    :wakes_at::bigint[]
) WITH ORDINALITY AS come (lane, queue, draws, variant, jobs, is_ready, wakes_at, place)
ORDER BY place
