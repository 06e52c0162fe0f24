-- Which transaction this is, for who may want to end its statement: a process of the server, and when it began it.
SELECT pg_backend_pid() AS pid, now() AS began_at
