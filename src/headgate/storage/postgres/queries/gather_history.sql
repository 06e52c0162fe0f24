-- Add notes to the steps of all lengths: of their queues and tasks, of their queues, and of all together. Two nodes that do
-- it at once take different notes; in one order, as in add_jobs_history.
WITH taken AS (
    DELETE FROM headgate.history_note
    WHERE ctid = ANY (ARRAY(SELECT ctid FROM headgate.history_note LIMIT :count::bigint FOR UPDATE SKIP LOCKED))
    RETURNING queue, task, at, enqueued, failed, cancelled
), added AS (
    INSERT INTO headgate.jobs_history AS kept (
        step, queue, task, at, enqueued, started, succeeded, failed, cancelled, retried, wait_max, run_max, waits, runs
    )
    SELECT
        length.step, curve.queue, curve.task, taken.at - taken.at % (length.step * 1000000::bigint), sum(taken.enqueued),
        0, 0, sum(taken.failed), sum(taken.cancelled), 0, 0, 0, '[]', '[]'
    FROM taken
    CROSS JOIN unnest(:lengths::integer[]) AS length (step)
    CROSS JOIN LATERAL (VALUES (taken.queue, taken.task), (taken.queue, ''), ('', '')) AS curve (queue, task)
    GROUP BY 1, 2, 3, 4
    ORDER BY length.step, curve.queue COLLATE "C", curve.task COLLATE "C", 4
    ON CONFLICT (step, queue, task, at) DO UPDATE SET
        enqueued = kept.enqueued + excluded.enqueued,
        failed = kept.failed + excluded.failed,
        cancelled = kept.cancelled + excluded.cancelled
)
SELECT count(*) FROM taken
