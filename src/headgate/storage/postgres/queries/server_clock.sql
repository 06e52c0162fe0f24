-- The server's wall clock in microseconds, as it is at this moment and not when the transaction began.
(extract(epoch FROM clock_timestamp()) * 1000000)::bigint
