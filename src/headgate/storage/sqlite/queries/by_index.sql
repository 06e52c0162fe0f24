-- The jobs among which a filter has to look, where an index knows them: :by says which one. They come in the order of their
-- seq, so that a page ends as soon as it is full.
job.seq IN (
    SELECT seq FROM job WHERE :by = 'state' AND state = :state AND finished_at >= coalesce(:finished_from, 0)
    UNION ALL
    SELECT seq FROM job WHERE :by = 'running' AND state = 'running'
    UNION ALL
    SELECT seq FROM job WHERE :by = 'waiting' AND waiting
    UNION ALL
    SELECT seq FROM job
    WHERE :by IN ('ready', 'throttled') AND waiting AND lane IN (
        SELECT lane.id FROM lane LEFT JOIN bucket ON bucket.id = lane.behind
        WHERE waiting > 0 AND (:by = 'throttled') = coalesce(bucket.opens_at > :limit_now, false)
    )
    UNION ALL
    SELECT seq FROM job WHERE :by = 'scheduled' AND waiting AND delayed = 1
    UNION ALL
    SELECT seq FROM job
    WHERE :by = 'draw' AND waiting AND lane IN (
        SELECT lane.id FROM lane
        WHERE waiting > 0 AND EXISTS (
            SELECT 1 FROM json_each(lane.draws) AS draw
            WHERE (:limit IS NULL OR json_extract(draw.value, '$[0]') = :limit)
                AND (:key IS NULL OR json_extract(draw.value, '$[1]') = :key)
        )
    )
    -- Those that pass some of their draws wait in a lane without them.
    UNION ALL
    SELECT seq FROM job WHERE :by = 'draw' AND waiting AND (held | passed) <> 0
    UNION ALL
    SELECT seq FROM job WHERE :by IN ('blocked', 'waiting', 'draw') AND state = 'blocked'
    UNION ALL
    SELECT seq FROM job WHERE :by = 'batch' AND batch = :batch
    UNION ALL
    SELECT seq FROM job WHERE :by = 'schedule' AND schedule = :schedule
)
