-- name: clock [postgres]
-- The server's wall clock, and what limit time adds to it.
SELECT @server_clock AS now, ahead, last_used FROM headgate.limit_time

-- name: raise_limit_time [postgres]
-- Limit time never goes below the last one used, whatever the server's clock did while nobody looked.
UPDATE headgate.limit_time SET ahead = last_used - @server_clock WHERE last_used > @server_clock + ahead

-- name: shift_limit_time [postgres]
-- The server's clock has stepped, and limit time is not to. Nothing is changed if somebody else has said so already, or if
-- limit time would go back behind where it is known to have been: then it is the one who says so that is wrong.
UPDATE headgate.limit_time
SET ahead = ahead + :shift, last_used = greatest(last_used, @server_clock + ahead + :shift)
WHERE ahead = :seen AND @server_clock + ahead + :shift >= last_used - 1000000

-- name: identity [postgres]
-- What tells these tables from those of the same name elsewhere.
SELECT id::text FROM headgate.identity

-- name: enlisted_at [postgres]
-- Where somebody's transaction is, and what it sees of others.
SELECT to_regclass('headgate.identity') IS NOT NULL, current_setting('transaction_isolation'), current_database()::text

-- name: notify [postgres]
-- Wake everybody who listens, without waiting for the disk: what is lost with the server is found by polling.
WITH unsynced AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
)
SELECT pg_notify(:channel, :news) FROM unsynced

-- name: notify_at_commit [postgres]
-- Wake everybody who listens when this transaction commits.
SELECT pg_notify(:channel, '')

-- name: own_transaction [postgres]
-- Which transaction this is, for who may want to end its statement: a process of the server, and when it began it.
SELECT pg_backend_pid() AS pid, now() AS began_at

-- name: end_statement [postgres]
-- End what a transaction does, if the process of the server is still in that one: the next may be anybody's.
SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE pid = :pid AND xact_start = :began_at

-- name: silent_clients [postgres]
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

-- name: end_silent_clients [postgres]
-- End those of these sessions that still wait for their clients in the same statement. They are found first: a function among
-- conditions may be called for any session.
WITH still AS MATERIALIZED (
    SELECT session.pid
    FROM unnest(:pids::integer[], :statements::text[]) AS silent (pid, statement)
    JOIN pg_stat_activity AS session ON session.pid = silent.pid
    WHERE concat(backend_start, ' ', query_start) = silent.statement AND state = 'active' AND wait_event_type = 'Client'
)
SELECT pid, pg_terminate_backend(pid) AS is_ended FROM still

-- name: server_facts [postgres]
-- What a server says of itself that matters to who works on it.
SELECT
    current_setting('server_version_num')::int AS version,
    pg_is_in_recovery() AS is_replica,
    current_setting('max_connections')::int AS max_connections,
    (SELECT coalesce(sum(numbackends), 0)::int FROM pg_stat_database) AS used_connections,
    current_setting('autovacuum')::bool AND current_setting('track_counts')::bool AS autovacuum,
    current_setting('fsync')::bool AS fsync,
    current_setting('synchronous_commit') AS synchronous_commit

-- name: table_facts [postgres]
-- The tables of a schema, with their live and dead rows as the server estimates them.
SELECT
    stat.relname AS name, stat.n_live_tup AS live, stat.n_dead_tup AS dead,
    NOT coalesce(class.reloptions::text LIKE '%autovacuum_enabled=false%', false) AS is_vacuumed
FROM pg_stat_user_tables AS stat
JOIN pg_class AS class ON class.oid = stat.relid
WHERE stat.schemaname = :schema
ORDER BY stat.relname
