-- What tells these tables from those of the same name elsewhere.
SELECT id::text FROM headgate.identity
