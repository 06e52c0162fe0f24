-- What a filter lets through. It is planned for its values, so that what is not asked for is not there. :needle is what the
-- draws of a job have to contain, and :lanes are those of the waiting ones, where that is known.
(:state::text IS NULL OR job.state = :state OR (:state = 'waiting' AND job.state = 'blocked'))
AND (:view::text IS NULL OR :view = 'blocked' OR job.waiting)
AND (:view::text IS DISTINCT FROM 'blocked' OR job.state = 'blocked')
AND (:view::text IS DISTINCT FROM 'scheduled' OR (job.delayed AND job.run_at > :now))
AND (:view::text IS NULL OR :view NOT IN ('throttled', 'ready') OR NOT (job.delayed AND job.run_at > :now))
AND (
    :view::text IS DISTINCT FROM 'throttled'
    OR job.lane IN (
        SELECT lane.id FROM headgate.lane JOIN headgate.bucket ON bucket.id = lane.behind WHERE bucket.opens_at > :limit_now
    )
)
-- Lanes that nothing holds are few where much waits; and so are those that are not merged yet.
AND (
    :view::text IS DISTINCT FROM 'ready'
    OR job.lane IN (
        SELECT lane.id FROM headgate.lane LEFT JOIN headgate.bucket ON bucket.id = lane.behind
        WHERE (bucket.opens_at > :limit_now) IS NOT TRUE
        UNION ALL
        SELECT lane FROM headgate.arrival WHERE NOT EXISTS (SELECT 1 FROM headgate.lane WHERE lane.id = arrival.lane)
    )
)
-- A job that passes some of its draws waits in a lane without them.
AND (
    :lanes::text[] IS NULL
    OR job.state = 'blocked'
    OR (job.waiting AND job.lane = ANY(:lanes))
    OR (job.waiting AND (job.held | job.passed) <> 0)
)
AND (:queue::text IS NULL OR job.queue = :queue)
AND (:task::text IS NULL OR job.task = :task)
AND (:unique_key::text IS NULL OR job.unique_key = :unique_key)
AND (:schedule::text IS NULL OR job.schedule = :schedule)
AND (:batch::text IS NULL OR job.batch = :batch)
AND (:node::text IS NULL OR job.node = :node)
AND (:enqueued_from::bigint IS NULL OR job.enqueued_at >= :enqueued_from)
AND (:enqueued_until::bigint IS NULL OR job.enqueued_at < :enqueued_until)
AND (:finished_from::bigint IS NULL OR job.finished_at >= :finished_from)
AND (:finished_until::bigint IS NULL OR job.finished_at < :finished_until)
AND (:needle::text IS NULL OR strpos(job.draws, :needle) > 0)
AND (:before::text IS NULL OR job.id < :before)
AND (:after::text IS NULL OR job.id > :after)
AND (:error::text IS NULL OR starts_with(substring(job.error FROM '^{"type":"([^"\\]*)"'), :error))
AND (:text::text IS NULL OR strpos(job.payload, :text) > 0)
