-- Forget notes that count no more.
DELETE FROM bucket_note
WHERE (limit_name, key, id) IN (
    SELECT limit_name, key, id FROM bucket_note WHERE until <= :limit_now LIMIT :count
)
