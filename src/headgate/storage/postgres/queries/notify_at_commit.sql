-- Wake everybody who listens when this transaction commits.
SELECT pg_notify(:channel, '')
