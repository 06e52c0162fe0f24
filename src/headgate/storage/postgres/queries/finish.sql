-- Running jobs become final.
UPDATE headgate.job
SET state = ended.state, result = ended.result, error = ended.error, finished_at = :now, held = ended.held
FROM unnest(:ids::text[], :states::text[], :results::text[], :errors::text[], :held::bigint[])
    AS ended (id, state, result, error, held)
WHERE job.id = ended.id AND job.finished_at IS NULL AND NOT job.waiting
