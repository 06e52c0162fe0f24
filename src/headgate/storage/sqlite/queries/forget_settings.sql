-- A limit is gone: so is what was set about it.
DELETE FROM limit_setting WHERE limit_name = :limit
