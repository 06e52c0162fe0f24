-- Contradictions between jobs, lanes and buckets, one sentence each.
SELECT 'lane ' || id || ' counts ' || waiting || ' waiting jobs and has '
    || (SELECT count(*) FROM job WHERE job.lane = lane.id AND state = 'waiting')
FROM lane
WHERE waiting <> (SELECT count(*) FROM job WHERE job.lane = lane.id AND state = 'waiting')
UNION ALL
SELECT 'lane ' || id || ' waits behind bucket ' || behind || ', which has no timer'
FROM lane
WHERE behind IS NOT NULL AND NOT EXISTS (SELECT 1 FROM bucket WHERE bucket.id = lane.behind AND opens_at IS NOT NULL)
UNION ALL
SELECT 'lane ' || id || ' sleeps although job ' || (
    SELECT job.id FROM job WHERE job.lane = lane.id AND state = 'waiting' AND delayed = 0 LIMIT 1
) || ' is ready'
FROM lane
WHERE since IS NULL AND EXISTS (SELECT 1 FROM job WHERE job.lane = lane.id AND state = 'waiting' AND delayed = 0)
UNION ALL
SELECT 'lane ' || id || ' would oversleep a job'
FROM lane
WHERE EXISTS (
    SELECT 1 FROM job
    WHERE job.lane = lane.id AND state = 'waiting' AND delayed = 1 AND (lane.wakes_at IS NULL OR run_at < lane.wakes_at)
)
UNION ALL
SELECT 'job ' || id || ' waits in a lane that is not there'
FROM job
WHERE state IN ('waiting', 'running') AND NOT EXISTS (SELECT 1 FROM lane WHERE lane.id = job.lane)
