-- Which revision of the settings holds.
SELECT revision FROM limit_revision
