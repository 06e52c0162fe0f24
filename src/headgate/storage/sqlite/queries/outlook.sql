-- Where a job would stand that is added to a lane now.
SELECT json_array(
    coalesce((SELECT waiting FROM lane WHERE queue = :queue AND draws = :draws AND variant = :variant), 0) + 1,
    coalesce((SELECT waiting FROM lane WHERE queue = :queue AND draws = :draws AND variant = :variant), 0) + 1,
    json('false'),
    (
        SELECT json_array(limit_name, key) FROM bucket
        WHERE id = (SELECT behind FROM lane WHERE queue = :queue AND draws = :draws AND variant = :variant)
    ),
    (
        SELECT json_group_array(@bucket_of_draw)
        FROM json_each(:draws) AS draw
        LEFT JOIN bucket ON bucket.limit_name = json_extract(draw.value, '$[0]') AND bucket.key = json_extract(draw.value, '$[1]')
    ),
    NULL,
    NULL,
    0
)
