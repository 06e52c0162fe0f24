-- Transactions that are open for long and keep dead rows from being cleared away, and connections that others wait for.
-- Of the sessions of other users a server tells no more than it likes.
WITH session AS (
    SELECT
        pid, xact_start, query_start, wait_event_type,
        backend_type = 'client backend' AND (backend_xid IS NOT NULL OR backend_xmin IS NOT NULL) AS keeps_rows,
        format(
            '%s%s', coalesce(nullif(application_name, ''), nullif(backend_type, 'client backend'), 'somebody'),
            ' (' || usename || ')'
        ) AS name,
        coalesce(state, 'doing what this role may not see') AS doing,
        CASE WHEN state IS NOT NULL THEN nullif(left(regexp_replace(query, '\s+', ' ', 'g'), 120), '') END AS statement
    FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
)
SELECT
    'long transaction' AS kind, pid, (extract(epoch FROM xact_start) * 1000000)::bigint AS since,
    format('%s lets no dead row be cleared away, %s', name, doing) AS what, statement
FROM session
WHERE keeps_rows AND wait_event_type IS DISTINCT FROM 'Lock' AND xact_start < clock_timestamp() - interval '5 seconds'
UNION ALL
SELECT
    'blocks', blocker.pid, (extract(epoch FROM min(waiter.query_start)) * 1000000)::bigint,
    format('%s keeps %s waiting, %s', blocker.name, count(DISTINCT waiter.pid), blocker.doing), blocker.statement
FROM session AS waiter
CROSS JOIN LATERAL unnest(pg_blocking_pids(waiter.pid)) AS blocking (pid)
JOIN session AS blocker ON blocker.pid = blocking.pid
WHERE waiter.wait_event_type = 'Lock' AND waiter.query_start < clock_timestamp() - interval '1 second'
GROUP BY blocker.pid, blocker.name, blocker.doing, blocker.statement
ORDER BY since
