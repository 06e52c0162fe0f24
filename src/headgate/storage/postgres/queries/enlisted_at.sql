-- Where somebody's transaction is, and what it sees of others.
SELECT to_regclass('headgate.identity') IS NOT NULL, current_setting('transaction_isolation'), current_database()::text
