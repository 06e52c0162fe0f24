-- Attempts that did not succeed, as far as their jobs are audited; :attempts is an array of [job seq, outcome, error].
INSERT INTO attempt (job, number, node, started_at, ended_at, outcome, error, charged_at, uncharged, settled)
SELECT
    job.id, attempt, node, started_at, :now, json_extract(ended.value, '$[1]'), json_extract(ended.value, '$[2]'),
    charged_at, uncharged, settled
FROM json_each(:attempts) AS ended
JOIN job ON job.seq = json_extract(ended.value, '$[0]')
WHERE job.audit >= CASE WHEN json_extract(ended.value, '$[2]') IS NOT NULL OR json_extract(ended.value, '$[1]') = 'lost' THEN 1 ELSE 2 END
