-- What time it is: the server's, unless the caller brings its own.
instant AS MATERIALIZED (
    SELECT
        coalesce(:now::bigint, @server_clock) AS now,
        coalesce(:limit_now::bigint, @server_clock + ahead) AS limit_now,
        ahead
    FROM headgate.limit_time
)
