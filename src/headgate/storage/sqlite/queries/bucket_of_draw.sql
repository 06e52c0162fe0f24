-- A bucket as people look at it, by the draw of a lane; its state is the limit's own where one state covers all keys.
json_array(
    json(draw.value),
    coalesce(
        bucket.state,
        (
            SELECT shared.state FROM bucket AS shared
            WHERE shared.limit_name = json_extract(draw.value, '$[0]') AND shared.key = ''
                AND shared.state LIKE '1:dynamic:%'
        )
    ),
    coalesce((SELECT sum(waiting) FROM lane AS line WHERE line.behind = bucket.id), 0),
    bucket.opens_at,
    coalesce(bucket.closed_until, 0),
    (SELECT count(*) FROM lane AS line WHERE line.behind = bucket.id)
)
