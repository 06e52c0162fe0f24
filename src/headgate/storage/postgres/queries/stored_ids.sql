-- Which of these job ids are stored.
SELECT id FROM headgate.job WHERE id = ANY(:ids::text[])
