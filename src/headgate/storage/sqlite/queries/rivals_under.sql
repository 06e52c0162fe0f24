-- Jobs that wait under the unique keys of these ones, which do not: an array of [job seq, id of the one that waits].
SELECT json_group_array(json_array(job.seq, other.id))
FROM job JOIN job AS other ON other.task = job.task AND other.unique_key = job.unique_key
WHERE job.seq IN (SELECT value FROM json_each(:seqs)) AND job.unique_key IS NOT NULL
    AND other.unique_key IS NOT NULL AND other.state IN ('waiting', 'blocked') AND other.seq <> job.seq
