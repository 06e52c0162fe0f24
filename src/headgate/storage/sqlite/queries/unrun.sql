-- What nobody else counts of these final jobs, as note_history takes it.
SELECT json_group_array(json_array(queue, task, 0, failed, cancelled))
FROM (
    SELECT queue, task, sum(state = 'failed') AS failed, sum(state = 'cancelled') AS cancelled
    FROM json_each(:seqs) AS ended
    JOIN job ON job.seq = ended.value
    GROUP BY queue, task
)
