-- Contradictions between jobs, lanes and buckets, one sentence each.
SELECT 'lane ' || id || ' counts ' || waiting || ' waiting jobs and has '
    || (SELECT count(*) FROM job WHERE job.lane = lane.id AND waiting)
FROM lane
WHERE waiting <> (SELECT count(*) FROM job WHERE job.lane = lane.id AND waiting)
UNION ALL
SELECT 'lane ' || id || ' waits behind bucket ' || behind || ', which has no timer'
FROM lane
WHERE behind IS NOT NULL AND NOT EXISTS (SELECT 1 FROM bucket WHERE bucket.id = lane.behind AND opens_at IS NOT NULL)
UNION ALL
SELECT 'lane ' || id || ' sleeps although job ' || (
    SELECT job.id FROM job WHERE job.lane = lane.id AND waiting AND delayed = 0 LIMIT 1
) || ' is ready'
FROM lane
WHERE since IS NULL AND EXISTS (SELECT 1 FROM job WHERE job.lane = lane.id AND waiting AND delayed = 0)
UNION ALL
SELECT 'lane ' || id || ' would oversleep a job'
FROM lane
WHERE EXISTS (
    SELECT 1 FROM job
    WHERE job.lane = lane.id AND waiting AND delayed = 1 AND (lane.wakes_at IS NULL OR run_at < lane.wakes_at)
)
UNION ALL
SELECT 'job ' || id || ' is blocked, and ' || follows || ', which it follows, is final or not marked as followed'
FROM job
WHERE state = 'blocked'
    AND NOT EXISTS (SELECT 1 FROM job AS leader WHERE leader.id = job.follows AND leader.finished_at IS NULL AND leader.is_followed)
    AND NOT EXISTS (SELECT 1 FROM batch WHERE batch.id = job.follows AND batch.pending > 0)
    AND NOT EXISTS (SELECT 1 FROM ended_leader AS ended WHERE ended.id = job.follows AND job.id > ended.after)
UNION ALL
SELECT 'batch ' || id || ' counts ' || pending || ' pending jobs and has '
    || (SELECT count(*) FROM job WHERE job.batch = batch.id AND job.finished_at IS NULL)
FROM batch
WHERE pending <> (SELECT count(*) FROM job WHERE job.batch = batch.id AND job.finished_at IS NULL)
UNION ALL
SELECT 'job ' || id || ' waits in a lane that is not there'
FROM job
WHERE state IN ('waiting', 'running') AND NOT EXISTS (SELECT 1 FROM lane WHERE lane.id = job.lane)
UNION ALL
SELECT 'schedule ' || name || ' counts ' || open || ' jobs that are not final, and has '
    || (SELECT count(*) FROM job WHERE job.schedule = schedule.name AND finished_at IS NULL)
FROM schedule
WHERE open <> (SELECT count(*) FROM job WHERE job.schedule = schedule.name AND finished_at IS NULL)
UNION ALL
SELECT 'queue ' || queue || ' counts ' || jobs || ' jobs that ' || state || ', and has '
    || (SELECT count(*) FROM job WHERE job.queue = final_count.queue AND job.state = final_count.state)
FROM final_count
WHERE jobs <> (SELECT count(*) FROM job WHERE job.queue = final_count.queue AND job.state = final_count.state)
UNION ALL
SELECT 'queue ' || queue || ' counts none of its jobs that ' || state
FROM (SELECT DISTINCT queue, state FROM job WHERE finished_at IS NOT NULL) AS final
WHERE NOT EXISTS (SELECT 1 FROM final_count WHERE final_count.queue = final.queue AND final_count.state = final.state)
