-- Which of these buckets have no row.
SELECT id FROM unnest(:ids::text[]) AS wanted (id)
WHERE NOT EXISTS (SELECT 1 FROM headgate.bucket WHERE bucket.id = wanted.id)
