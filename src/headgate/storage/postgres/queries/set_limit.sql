-- Store a setting in place of the one for the same keys.
INSERT INTO headgate.limit_setting (limit_name, scope, target, rule, is_paused, tier)
VALUES (:limit, :scope, :target, :rule, :is_paused, :tier)
ON CONFLICT (limit_name, scope, target) DO UPDATE SET
    rule = excluded.rule, is_paused = excluded.is_paused, tier = excluded.tier
