-- The steps of one curve, in order; that of all keys together if :key is null.
SELECT json_group_array(json_array(step, limit_name, CASE WHEN of_all THEN NULL ELSE key END, at, used))
FROM (
    SELECT * FROM limit_history
    WHERE step = :step AND limit_name = :limit AND of_all = (:key IS NULL) AND key = ifnull(:key, '') AND at >= :since
    ORDER BY at
)
