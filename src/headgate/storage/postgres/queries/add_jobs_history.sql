-- Add steps to what is kept of the same curves; in one order, so that nodes that do it at once wait for each other in turn.
INSERT INTO headgate.jobs_history AS kept (
    step, queue, task, at, enqueued, started, succeeded, failed, cancelled, retried, wait_max, run_max, waits, runs
)
SELECT * FROM unnest(
    :steps::integer[], :queues::text[], :tasks::text[], :at::bigint[], :enqueued::bigint[], :started::bigint[],
    :succeeded::bigint[], :failed::bigint[], :cancelled::bigint[], :retried::bigint[], :wait_max::bigint[],
    :run_max::bigint[], :waits::text[], :runs::text[]
) AS own (
    step, queue, task, at, enqueued, started, succeeded, failed, cancelled, retried, wait_max, run_max, waits, runs
)
ORDER BY step, queue COLLATE "C", task COLLATE "C", at
ON CONFLICT (step, queue, task, at) DO UPDATE SET
    enqueued = kept.enqueued + excluded.enqueued,
    started = kept.started + excluded.started,
    succeeded = kept.succeeded + excluded.succeeded,
    failed = kept.failed + excluded.failed,
    cancelled = kept.cancelled + excluded.cancelled,
    retried = kept.retried + excluded.retried,
    wait_max = greatest(kept.wait_max, excluded.wait_max),
    run_max = greatest(kept.run_max, excluded.run_max),
    waits = (
        SELECT coalesce(json_agg(coalesce(mine::bigint, 0) + coalesce(theirs::bigint, 0) ORDER BY place)::text, '[]')
        FROM ROWS FROM (
            json_array_elements_text(kept.waits::json), json_array_elements_text(excluded.waits::json)
        ) WITH ORDINALITY AS both_of (mine, theirs, place)
    ),
    runs = (
        SELECT coalesce(json_agg(coalesce(mine::bigint, 0) + coalesce(theirs::bigint, 0) ORDER BY place)::text, '[]')
        FROM ROWS FROM (
            json_array_elements_text(kept.runs::json), json_array_elements_text(excluded.runs::json)
        ) WITH ORDINALITY AS both_of (mine, theirs, place)
    )
