-- Which revision of the settings holds.
SELECT revision FROM headgate.limit_revision
