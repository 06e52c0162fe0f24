-- The tables of a schema, with their live and dead rows as the server estimates them.
SELECT
    stat.relname AS name, stat.n_live_tup AS live, stat.n_dead_tup AS dead,
    NOT coalesce(class.reloptions::text LIKE '%autovacuum_enabled=false%', false) AS is_vacuumed
FROM pg_stat_user_tables AS stat
JOIN pg_class AS class ON class.oid = stat.relid
WHERE stat.schemaname = :schema
ORDER BY stat.relname
