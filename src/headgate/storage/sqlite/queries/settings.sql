-- What is set about limits at run time.
SELECT json_group_array(
    json_array(
        limit_name, scope, target, rule, json(CASE WHEN is_paused THEN 'true' ELSE 'false' END), tier
    )
)
FROM limit_setting
