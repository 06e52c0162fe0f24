-- How many jobs a filter lets through, counted up to so many.
SELECT count(*) FROM (SELECT 1 FROM job WHERE @job_filter LIMIT :most)
