-- What one of the jobs of a batch asks of its limits.
SELECT draws, terms FROM headgate.job WHERE batch IS NOT NULL AND batch = :batch LIMIT 1
