-- Note what was answered to a request to a bucket.
INSERT INTO headgate.bucket_note (bucket, id, note, until) VALUES (:bucket, :id, :note, :until)
ON CONFLICT (bucket, id) DO UPDATE SET note = excluded.note, until = excluded.until
