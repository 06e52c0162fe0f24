-- Attempts that did not succeed.
INSERT INTO headgate.attempt (job, number, node, started_at, ended_at, outcome, error, charged_at, uncharged, settled)
SELECT
    job.id, job.attempt, job.node, job.started_at, :now::bigint, ended.outcome, ended.error, job.charged_at, job.uncharged,
    job.settled
FROM unnest(:ids::text[], :outcomes::text[], :errors::text[]) WITH ORDINALITY AS ended (id, outcome, error, place)
JOIN headgate.job ON job.id = ended.id
ORDER BY ended.place
