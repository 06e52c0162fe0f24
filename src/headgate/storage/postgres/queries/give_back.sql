-- Running jobs wait again, in the lanes of what they ask for next, or are cancelled if that was asked for.
UPDATE headgate.job
SET state = CASE WHEN cancel_requested THEN 'cancelled' ELSE 'waiting' END,
    waiting = NOT cancel_requested,
    finished_at = CASE WHEN cancel_requested THEN :now::bigint END,
    attempt = job.attempt - back.unspent,
    lost = job.lost + back.lost,
    delayed = job.delayed OR back.run_at IS NOT NULL,
    run_at = coalesce(back.run_at, job.run_at),
    error = coalesce(back.error, job.error),
    give_up_at = back.give_up_at,
    held = back.held,
    passed = back.passed,
    lane = back.lane,
    charged_at = NULL,
    uncharged = 0,
    settled = NULL
FROM unnest(
    :ids::text[], :unspent::integer[], :lost::integer[], :run_at::bigint[], :errors::text[], :give_up_at::bigint[],
    :held::bigint[], :passed::bigint[], :lanes::text[]
) AS back (id, unspent, lost, run_at, error, give_up_at, held, passed, lane)
WHERE job.id = back.id AND job.finished_at IS NULL AND NOT job.waiting
RETURNING job.id, job.waiting, job.delayed, job.run_at
