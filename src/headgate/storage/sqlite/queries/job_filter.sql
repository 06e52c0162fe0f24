-- What a filter lets through; what is NULL is not asked for.
(:state IS NULL OR job.state = :state OR (:state = 'waiting' AND job.state = 'blocked'))
AND (:queue IS NULL OR job.queue = :queue)
AND (:task IS NULL OR job.task = :task)
AND (:unique_key IS NULL OR job.unique_key = :unique_key)
AND (:schedule IS NULL OR job.schedule = :schedule)
AND (:batch IS NULL OR job.batch = :batch)
AND (:node IS NULL OR job.node = :node)
AND (:enqueued_from IS NULL OR job.enqueued_at >= :enqueued_from)
AND (:enqueued_until IS NULL OR job.enqueued_at < :enqueued_until)
AND (:finished_from IS NULL OR job.finished_at >= :finished_from)
AND (:finished_until IS NULL OR job.finished_at < :finished_until)
-- The job that ended the page before may be pruned since: then it goes on from those next to it, and may repeat some.
AND (:before IS NULL OR job.seq < coalesce((SELECT seq FROM job WHERE id = :before), (SELECT max(seq) FROM job WHERE id < :before) + 1))
AND (:after IS NULL OR job.seq > coalesce((SELECT seq FROM job WHERE id = :after), (SELECT min(seq) FROM job WHERE id > :after) - 1))
AND (:error IS NULL OR substr(json_extract(job.error, '$.type'), 1, length(:error)) = :error)
AND (:text IS NULL OR instr(job.payload, :text) > 0)
AND (
    (:limit IS NULL AND :key IS NULL)
    OR EXISTS (
        SELECT 1 FROM json_each(job.draws) AS draw
        WHERE (:limit IS NULL OR json_extract(draw.value, '$[0]') = :limit)
            AND (:key IS NULL OR json_extract(draw.value, '$[1]') = :key)
    )
)
AND (
    :view IS NULL
    OR (:view = 'blocked' AND job.state = 'blocked')
    OR (:view = 'scheduled' AND job.state = 'waiting' AND job.delayed AND job.run_at > :now)
    OR (
        :view IN ('throttled', 'ready') AND job.state = 'waiting' AND NOT (job.delayed AND job.run_at > :now)
        AND (:view = 'throttled') = EXISTS (
            SELECT 1 FROM lane JOIN bucket ON bucket.id = lane.behind
            WHERE lane.id = job.lane AND bucket.opens_at > :limit_now
        )
    )
)
