-- The last starts of running jobs as they came to be charged.
UPDATE headgate.job
SET charged_at = settled.charged_at, settled = settled.costs
FROM unnest(:ids::text[], :charged_at::bigint[], :costs::text[]) AS settled (id, charged_at, costs)
WHERE job.id = settled.id
