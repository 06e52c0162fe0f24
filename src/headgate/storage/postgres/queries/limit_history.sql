-- The steps of one curve, in order.
SELECT at, used FROM headgate.limit_history
WHERE step = :step::integer AND limit_name = :limit::text AND of_all = :of_all::boolean AND key = :key::text
    AND at >= :since::bigint
ORDER BY at
