-- How far running attempts say they are; :jobs is an array of [job seq, progress].
UPDATE job SET progress = json_extract(said.value, '$[1]')
FROM json_each(:jobs) AS said
WHERE job.seq = json_extract(said.value, '$[0]') AND +job.state = 'running'
