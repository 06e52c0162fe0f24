-- The schedule of that name, or a page of schedules by name.
SELECT json_group_array(
    json_array(
        name, json(call), json(rules), json_array(started_at, next_at, last_at, runs, open), last_job, paused_at, revision,
        json(iif(is_declared, 'true', 'false')), formerly, skipped, skipped_at
    )
)
FROM (SELECT * FROM schedule WHERE name > :after AND (:name IS NULL OR name = :name) ORDER BY name LIMIT :count)
