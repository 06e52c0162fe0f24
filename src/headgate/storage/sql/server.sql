-- name: clock [postgres]
-- Return the server's wall clock, the offset of limit time from it, and whether limit time was used beyond that: then it is
-- to be raised, but not on a replica, whose clock may be behind that of the primary.
SELECT
    @server_clock AS now, ahead,
    last_used > @server_clock + ahead AND current_setting('transaction_read_only') = 'off' AS is_behind
FROM headgate.limit_time

-- name: raise_limit_time [postgres]
-- Raise limit time to the last value used, whatever the server's clock has done in between.
UPDATE headgate.limit_time SET ahead = last_used - @server_clock WHERE last_used > @server_clock + ahead

-- name: shift_limit_time [postgres]
-- Store a new offset of limit time after the server's clock has stepped. Changes nothing if another client has stored
-- the step already, or if limit time would go back behind a value that it is known to have had: then this client is
-- wrong.
UPDATE headgate.limit_time
SET ahead = ahead + :shift, last_used = greatest(last_used, @server_clock + ahead + :shift)
WHERE ahead = :seen AND @server_clock + ahead + :shift >= last_used - 1000000

-- name: identity [postgres]
-- Return the id that distinguishes these tables from tables with the same names in another place, a number that
-- distinguishes them from those of a dump restored in their place, and what distinguishes them from a copy in a database
-- beside this one: both copies have the same id.
SELECT CAST(id AS text), tableoid, concat(id, ' ', current_database()) FROM headgate.identity

-- name: identity [sqlite]
SELECT id FROM identity

-- name: used_folder
-- Return the URL of a folder of large payloads, if it has been used.
SELECT url FROM headgate.used_folder WHERE url = :url

-- name: note_used_folder
-- Note that a folder of large payloads has been used.
INSERT INTO headgate.used_folder (url) VALUES (:url) ON CONFLICT (url) DO NOTHING

-- name: enlisted_at [postgres]
-- Whether a caller's transaction can see these tables; its isolation level, and its database.
SELECT to_regclass('headgate.identity') IS NOT NULL, current_setting('transaction_isolation'), current_database()::text

-- name: notify [postgres]
-- Wake all listeners without waiting for the disk: polling finds what is lost with the server.
WITH @unsynced
SELECT pg_notify(:channel, :payload) FROM unsynced

-- name: notify_at_commit [postgres]
-- Wake all listeners when this transaction commits.
SELECT pg_notify(:channel, '')

-- name: own_transaction [postgres]
-- Return the backend process of this transaction and when the transaction began, for a client that may end its
-- statement.
SELECT pg_backend_pid() AS pid, now() AS began_at

-- name: end_statement [postgres]
-- End the statement of a transaction, if the backend process is still in that transaction and not in a later one.
SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE pid = :pid AND xact_start = :began_at

-- name: silent_clients [postgres]
-- Return sessions of this program that hold locks in these tables and wait for their clients in the middle of a
-- statement. `statement` differs for each statement.
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
-- End those of these sessions that still wait for their clients in the same statement. They are selected first, because
-- a function among the conditions may be called for any session.
WITH still AS MATERIALIZED (
    SELECT session.pid
    FROM unnest(:pids::integer[], :statements::text[]) AS silent (pid, statement)
    JOIN pg_stat_activity AS session ON session.pid = silent.pid
    WHERE concat(backend_start, ' ', query_start) = silent.statement AND state = 'active' AND wait_event_type = 'Client'
)
SELECT pid, pg_terminate_backend(pid) AS is_ended FROM still

-- name: server_facts [postgres]
-- Return facts about the server that matter to its clients.
SELECT
    current_setting('server_version_num')::int AS version,
    current_setting('transaction_read_only')::bool AS is_read_only,
    current_setting('max_connections')::int AS max_connections,
    (SELECT coalesce(sum(numbackends), 0)::int FROM pg_stat_database) AS used_connections,
    current_setting('autovacuum')::bool AND current_setting('track_counts')::bool AS autovacuum,
    current_setting('fsync')::bool AS fsync,
    current_setting('synchronous_commit') AS synchronous_commit

-- name: table_facts [postgres]
-- Return the tables of a schema, with their live and dead rows as the server estimates them.
SELECT
    stat.relid::regclass::text AS name, stat.n_live_tup AS live, stat.n_dead_tup AS dead,
    NOT EXISTS (
        SELECT 1 FROM pg_options_to_table(class.reloptions) WHERE option_name = 'autovacuum_enabled' AND NOT option_value::bool
    ) AS is_vacuumed
FROM pg_stat_user_tables AS stat
JOIN pg_class AS class ON class.oid = stat.relid
WHERE stat.schemaname = :schema
ORDER BY stat.relname
