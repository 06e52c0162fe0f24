-- Forget the writes of processes that have made none since then.
DELETE FROM history_flush WHERE at < :before
