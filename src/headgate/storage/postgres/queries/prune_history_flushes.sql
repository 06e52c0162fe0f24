-- Forget the writes of processes that have made none since then.
DELETE FROM headgate.history_flush WHERE at < :before::bigint
