-- Which of these batches have jobs that are not final.
SELECT id FROM headgate.batch WHERE id = ANY(:ids::text[]) AND pending > 0
