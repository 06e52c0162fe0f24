-- Jobs of a batch have become final; or, below 0, have come back.
UPDATE headgate.batch
SET pending = pending - :succeeded::integer - :failed::integer - :cancelled::integer,
    succeeded = succeeded + :succeeded::integer,
    failed = failed + :failed::integer,
    cancelled = cancelled + :cancelled::integer,
    finished_at = CASE WHEN pending = :succeeded::integer + :failed::integer + :cancelled::integer THEN :now::bigint END
WHERE id = :id
RETURNING id, pending, failed, cancelled
