-- Up to so many blocked followers of these leaders, in the order of leaders and followers, each leader's after an id; :leaders is
-- an array of [id, state, after].
SELECT json_group_array(json(found))
FROM (
    SELECT json_array(
        job.seq, job.id, follows, coalesce(json_extract(origin, '$.on'), 'success'), queue, json(draws), json(terms), run_at
    ) AS found
    FROM json_each(:leaders) AS leader
    CROSS JOIN job ON job.seq IN (
        SELECT follower.seq FROM job AS follower
        WHERE follower.follows = json_extract(leader.value, '$[0]') AND follower.id > json_extract(leader.value, '$[2]')
            AND +follower.state = 'blocked'
        ORDER BY follower.id
        LIMIT :count
    )
    ORDER BY follows, job.id
    LIMIT :count
)
