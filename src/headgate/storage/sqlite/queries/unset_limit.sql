-- Remove a setting.
DELETE FROM limit_setting WHERE limit_name = :limit AND scope = :scope AND target = :target
