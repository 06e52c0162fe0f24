-- Where a waiting job stands in its lane, and the buckets that the lane draws on; NULL if the job does not wait.
-- The state of a bucket is the limit's own where one state covers all keys.
SELECT (
    SELECT json_array(
        (
            SELECT CASE WHEN count(*) < 100000 THEN count(*) + 1 END
            FROM (
                SELECT 1 FROM job AS other
                WHERE other.lane = job.lane AND other.waiting
                    AND (
                        other.priority > job.priority
                        OR (other.priority = job.priority AND (other.run_at, other.seq) < (job.run_at, job.seq))
                    )
                LIMIT 100000
            )
        ),
        lane.waiting,
        json(CASE WHEN lane.since IS NOT NULL AND lane.behind IS NULL THEN 'true' ELSE 'false' END),
        (SELECT json_array(limit_name, key) FROM bucket WHERE bucket.id = lane.behind),
        (
            SELECT json_group_array(@bucket_of_draw)
            FROM json_each(lane.draws) AS draw
            LEFT JOIN bucket ON bucket.limit_name = json_extract(draw.value, '$[0]') AND bucket.key = json_extract(draw.value, '$[1]')
        ),
        json(job.costs),
        json(job.terms),
        job.held | job.passed
    )
    FROM job JOIN lane ON lane.id = job.lane
    WHERE job.id = :id AND job.waiting
)
