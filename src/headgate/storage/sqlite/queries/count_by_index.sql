-- How many jobs of those that an index knows a filter lets through, counted up to so many.
SELECT count(*) FROM (SELECT 1 FROM job WHERE @by_index AND @job_filter LIMIT :most)
