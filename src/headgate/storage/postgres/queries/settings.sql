-- What is set about limits at run time.
SELECT limit_name, scope, target, rule, is_paused, tier FROM headgate.limit_setting
