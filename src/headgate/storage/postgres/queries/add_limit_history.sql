-- Add what was charged to what is kept of the same curves; in one order, as in add_jobs_history.
INSERT INTO headgate.limit_history AS kept (step, limit_name, of_all, key, at, used)
SELECT * FROM unnest(
    :steps::integer[], :limits::text[], :of_all::boolean[], :keys::text[], :at::bigint[], :used::bigint[]
) AS own (step, limit_name, of_all, key, at, used)
ORDER BY step, limit_name COLLATE "C", of_all, key COLLATE "C", at
ON CONFLICT (step, limit_name, of_all, key, at) DO UPDATE SET used = kept.used + excluded.used
