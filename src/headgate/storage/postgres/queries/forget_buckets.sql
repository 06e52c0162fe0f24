-- A limit is gone: so are its buckets.
DELETE FROM headgate.bucket WHERE limit_name = :limit
