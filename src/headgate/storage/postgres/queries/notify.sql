-- Wake everybody who listens.
WITH @unsynced
SELECT pg_notify(:channel, :origin) FROM unsynced
