-- A limit is gone: so is what was set about it.
DELETE FROM headgate.limit_setting WHERE limit_name = :limit
