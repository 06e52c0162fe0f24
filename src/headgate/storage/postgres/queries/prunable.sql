-- Final jobs that finished before then.
SELECT id, held, draws, terms FROM headgate.job WHERE finished_at < :before LIMIT :count
