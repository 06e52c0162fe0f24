-- A limit is gone: so are its buckets.
DELETE FROM bucket WHERE limit_name = :limit
