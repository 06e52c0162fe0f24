-- How far running attempts say they are.
UPDATE headgate.job SET progress = said.progress
FROM unnest(:ids::text[], :progress::text[]) AS said (id, progress)
WHERE job.id = said.id
