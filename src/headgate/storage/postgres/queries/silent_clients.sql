-- Sessions of ours that hold locks in these tables, and wait for their clients in the middle of a statement. `statement` is
-- another one for each statement.
SELECT pid, concat(backend_start, ' ', query_start) AS statement
FROM pg_stat_activity AS session
WHERE datname = current_database() AND usename = current_user AND application_name = 'headgate'
    AND state = 'active' AND wait_event_type = 'Client' AND pid <> pg_backend_pid()
    AND EXISTS (
        SELECT 1
        FROM pg_locks AS held
        JOIN pg_class AS locked ON locked.oid = held.relation
        WHERE held.pid = session.pid AND held.granted AND held.mode <> 'AccessShareLock'
            AND locked.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'headgate.job'::regclass)
    )
