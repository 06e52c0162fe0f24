-- Note what was answered to a request to a bucket.
INSERT INTO bucket_note (limit_name, key, id, note, until) VALUES (:limit, :key, :id, :note, :until)
ON CONFLICT (limit_name, key, id) DO UPDATE SET note = excluded.note, until = excluded.until
