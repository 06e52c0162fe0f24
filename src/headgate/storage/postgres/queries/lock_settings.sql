-- Nobody else changes a setting until this transaction ends.
SELECT revision FROM headgate.limit_revision FOR UPDATE
