-- End those of these sessions that still wait for their clients in the same statement. They are found first: a function among
-- conditions may be called for any session.
WITH still AS MATERIALIZED (
    SELECT session.pid
    FROM unnest(:pids::integer[], :statements::text[]) AS silent (pid, statement)
    JOIN pg_stat_activity AS session ON session.pid = silent.pid
    WHERE concat(backend_start, ' ', query_start) = silent.statement AND state = 'active' AND wait_event_type = 'Client'
)
SELECT pid, pg_terminate_backend(pid) AS is_ended FROM still
