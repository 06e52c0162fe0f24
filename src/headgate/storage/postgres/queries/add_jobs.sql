-- Store new jobs that are plain, and that they have arrived in their lanes; those that are stored already stay as they are.
WITH new AS (
    INSERT INTO headgate.job (
        id, task, queue, gate, lane, payload, priority, delayed, run_at, enqueued_at, expires_at, draws, costs, headers, options,
        terms, give_up_at, state, waiting, error, finished_at
    )
    SELECT
        id, task, queue, gate, lane, payload, priority, delayed, run_at, enqueued_at, expires_at, draws, costs, headers, options,
        terms, give_up_at, state, state = 'waiting', error, CASE WHEN state <> 'waiting' THEN enqueued_at END
    FROM unnest(
        :ids::text[], :tasks::text[], :queues::text[], :gates::text[], :lanes::text[], :payloads::text[], :priorities::smallint[],
        :delayed::boolean[], :run_at::bigint[], :enqueued_at::bigint[], :expires_at::bigint[], :draws::text[],
        :costs::text[], :headers::text[], :options::text[], :terms::text[], :give_up_at::bigint[], :states::text[],
        :errors::text[]
    ) AS new (
        id, task, queue, gate, lane, payload, priority, delayed, run_at, enqueued_at, expires_at, draws, costs, headers, options,
        terms, give_up_at, state, error
    )
    ON CONFLICT (id) DO NOTHING
    RETURNING lane, delayed, run_at, waiting
)
INSERT INTO headgate.arrival (lane, queue, draws, variant, jobs, is_ready, since, wakes_at)
SELECT
    known.lane, known.queue, known.draws, known.variant, count(*), bool_or(NOT new.delayed), :limit_now::bigint,
    min(new.run_at) FILTER (WHERE new.delayed)
FROM new
JOIN unnest(:lane_ids::text[], :lane_queues::text[], :lane_draws::text[], :lane_variants::text[])
    WITH ORDINALITY AS known (lane, queue, draws, variant, place) USING (lane)
WHERE new.waiting
GROUP BY known.lane, known.queue, known.draws, known.variant, known.place
ORDER BY known.place
