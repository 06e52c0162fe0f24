-- What a server says of itself that matters to who works on it.
SELECT
    current_setting('server_version_num')::int AS version,
    pg_is_in_recovery() AS is_replica,
    current_setting('max_connections')::int AS max_connections,
    (SELECT coalesce(sum(numbackends), 0)::int FROM pg_stat_database) AS used_connections,
    current_setting('autovacuum')::bool AND current_setting('track_counts')::bool AS autovacuum,
    current_setting('fsync')::bool AS fsync,
    current_setting('synchronous_commit') AS synchronous_commit
