-- Jobs whose end is looked at, because others follow them.
UPDATE job SET is_followed = 1 WHERE id IN (SELECT value FROM json_each(:ids))
