-- A running job waits again, or is cancelled if that was asked for.
UPDATE job
SET state = CASE WHEN cancel_requested THEN 'cancelled' ELSE 'waiting' END,
    waiting = NOT cancel_requested,
    finished_at = CASE WHEN cancel_requested THEN :now END,
    attempt = attempt - :unspent,
    lost = lost + :lost,
    delayed = CASE WHEN :run_at IS NULL THEN delayed ELSE 1 END,
    run_at = coalesce(:run_at, run_at),
    error = coalesce(:error, error),
    give_up_at = :give_up_at,
    charged_at = NULL,
    uncharged = 0,
    settled = NULL
WHERE seq = :seq AND state = 'running'
