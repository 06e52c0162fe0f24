-- Attempts that did not succeed; :attempts is an array of [job seq, outcome, error].
INSERT INTO attempt (job, number, node, started_at, ended_at, outcome, error, charged_at, uncharged, settled)
SELECT
    seq, attempt, node, started_at, :now, json_extract(ended.value, '$[1]'), json_extract(ended.value, '$[2]'),
    charged_at, uncharged, settled
FROM json_each(:attempts) AS ended
JOIN job ON job.seq = json_extract(ended.value, '$[0]')
