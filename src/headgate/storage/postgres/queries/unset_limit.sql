-- Remove a setting.
DELETE FROM headgate.limit_setting WHERE limit_name = :limit AND scope = :scope AND target = :target
