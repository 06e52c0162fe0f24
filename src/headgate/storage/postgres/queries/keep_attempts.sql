-- Attempts that did not succeed, as far as their jobs are audited.
INSERT INTO headgate.attempt (job, number, node, started_at, ended_at, outcome, error, charged_at, uncharged, settled)
SELECT
    job.id, job.attempt, job.node, job.started_at, :now::bigint, ended.outcome, ended.error, job.charged_at, job.uncharged,
    job.settled
FROM unnest(:ids::text[], :outcomes::text[], :errors::text[]) WITH ORDINALITY AS ended (id, outcome, error, place)
JOIN headgate.job ON job.id = ended.id
WHERE job.audit >= CASE WHEN ended.error IS NOT NULL OR ended.outcome = 'lost' THEN 1 ELSE 2 END
ORDER BY ended.place
