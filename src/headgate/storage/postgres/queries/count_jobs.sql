-- How many jobs a filter lets through, counted up to so many.
SELECT count(*) FROM (SELECT 1 FROM headgate.job WHERE @job_filter LIMIT :most) AS passing
