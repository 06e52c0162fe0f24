-- Store new jobs with all that there may be to them, and that they have arrived in their lanes; those that are stored
-- already stay as they are, and those for which another one waits under their unique key are not stored.
WITH new AS (
    INSERT INTO headgate.job (
        id, task, queue, gate, lane, payload, priority, delayed, run_at, enqueued_at, expires_at, draws, costs, headers, options,
        terms, give_up_at, state, waiting, error, finished_at, unique_key, audit, origin, follows, batch, schedule
    )
    SELECT
        id, task, queue, gate, lane, payload, priority, delayed, run_at, enqueued_at, expires_at, draws, costs, headers, options,
        terms, give_up_at, state, state = 'waiting', error,
        CASE WHEN state NOT IN ('waiting', 'blocked') THEN enqueued_at END, unique_key, audit,
        origin, origin::json ->> 'follows', origin::json ->> 'batch', origin::json ->> 'schedule'
    FROM unnest(
        :ids::text[], :tasks::text[], :queues::text[], :gates::text[], :lanes::text[], :payloads::text[], :priorities::smallint[],
        :delayed::boolean[], :run_at::bigint[], :enqueued_at::bigint[], :expires_at::bigint[], :draws::text[],
        :costs::text[], :headers::text[], :options::text[], :terms::text[], :give_up_at::bigint[], :states::text[],
        :errors::text[], :unique_keys::text[], :origins::text[], :audits::smallint[]
    ) AS new (
        id, task, queue, gate, lane, payload, priority, delayed, run_at, enqueued_at, expires_at, draws, costs, headers, options,
        terms, give_up_at, state, error, unique_key, origin, audit
    )
    ON CONFLICT DO NOTHING
    RETURNING lane, delayed, run_at, waiting, queue, task, enqueued_at, state
), unrun AS (
    -- They are final at once, and no attempt will tell of them.
    INSERT INTO headgate.history_note (queue, task, at, enqueued, failed, cancelled)
    SELECT
        queue, task, max(enqueued_at), 0, count(*) FILTER (WHERE state = 'failed'),
        count(*) FILTER (WHERE state = 'cancelled')
    FROM new
    WHERE state IN ('failed', 'cancelled')
    GROUP BY queue, task
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
