-- End what a transaction does, if the process of the server is still in that one: the next may be anybody's.
SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE pid = :pid AND xact_start = :began_at
