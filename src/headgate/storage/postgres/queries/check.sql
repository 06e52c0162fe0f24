-- Contradictions between jobs, lanes, arrivals and buckets, one sentence each. What has arrived and is not merged yet
-- counts as merged. A lane of which somebody's transaction held all jobs may sleep for a second.
WITH line AS (
    SELECT
        coalesce(lane.id, arrived.lane) AS id,
        coalesce(lane.waiting, 0) + coalesce(arrived.jobs, 0) AS waiting,
        lane.since, lane.behind,
        coalesce(lane.gated, arrived.gated) AS gated,
        least(lane.wakes_at, arrived.wakes_at) AS wakes_at,
        coalesce(arrived.is_ready, false) AS is_ready
    FROM headgate.lane
    FULL JOIN (
        SELECT lane, sum(jobs) AS jobs, bool_or(is_ready) AS is_ready, min(wakes_at) AS wakes_at, bool_or(draws <> '[]') AS gated
        FROM headgate.arrival GROUP BY lane
    ) AS arrived ON arrived.lane = lane.id
)
SELECT format('lane %s counts %s waiting jobs and has %s', id, waiting, found)
FROM line CROSS JOIN LATERAL (SELECT count(*) AS found FROM headgate.job WHERE job.lane = line.id AND job.waiting) AS jobs
WHERE waiting <> found
UNION ALL
SELECT format('lane %s waits behind bucket %s, which has no timer', id, behind)
FROM line
WHERE behind IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM headgate.bucket WHERE bucket.id = line.behind AND opens_at IS NOT NULL)
UNION ALL
SELECT format('lane %s sleeps although job %s is ready', line.id, min(job.id))
FROM line JOIN headgate.job ON job.lane = line.id AND job.waiting AND NOT job.delayed
WHERE line.gated AND line.since IS NULL AND NOT line.is_ready
    AND (line.wakes_at IS NULL OR line.wakes_at > :now::bigint + 1000000)
GROUP BY line.id
UNION ALL
SELECT format('lane %s would oversleep job %s', line.id, min(job.id))
FROM line JOIN headgate.job ON job.lane = line.id AND job.waiting AND job.delayed
WHERE line.gated AND line.since IS NULL AND (line.wakes_at IS NULL OR job.run_at < line.wakes_at) AND NOT line.is_ready
GROUP BY line.id
UNION ALL
SELECT format('job %s is blocked, and %s, which it follows, is final or not marked as followed', id, follows)
FROM headgate.job
WHERE state = 'blocked'
    AND NOT EXISTS (
        SELECT 1 FROM headgate.job AS leader WHERE leader.id = job.follows AND leader.finished_at IS NULL AND leader.is_followed
    )
    AND NOT EXISTS (SELECT 1 FROM headgate.batch WHERE batch.id = job.follows AND pending > 0)
    AND NOT EXISTS (SELECT 1 FROM headgate.ended_leader AS ended WHERE ended.id = job.follows AND job.id > ended.after)
UNION ALL
SELECT format('batch %s counts %s pending jobs and has %s', id, pending, found)
FROM headgate.batch
CROSS JOIN LATERAL (
    SELECT count(*) AS found FROM headgate.job WHERE job.batch = batch.id AND job.finished_at IS NULL
) AS jobs
WHERE pending <> found
UNION ALL
SELECT format('job %s waits in a lane that is not there', id)
FROM headgate.job
WHERE waiting AND NOT EXISTS (SELECT 1 FROM line WHERE line.id = job.lane)
UNION ALL
SELECT format('schedule %s counts %s jobs that are not final, and has %s', name, counted, found)
FROM (
    SELECT
        name,
        open + coalesce((SELECT sum(note.open) FROM headgate.schedule_note AS note WHERE note.schedule = name), 0) AS counted,
        (SELECT count(*) FROM headgate.job WHERE job.schedule = name AND finished_at IS NULL) AS found
    FROM headgate.schedule
) AS counts
WHERE counted <> found
