-- Jobs whose end is looked at, because others follow them. They are locked already, or new.
UPDATE headgate.job SET is_followed = true WHERE id = ANY(:ids::text[]) AND NOT is_followed
