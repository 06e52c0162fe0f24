-- Forget notes that count no more.
DELETE FROM bucket_note
WHERE (bucket, id) IN (
    SELECT bucket, id FROM bucket_note WHERE until <= :limit_now LIMIT :count
)
