-- How many jobs wait in a lane, and behind which bucket.
SELECT
    coalesce(lane.waiting, 0) + coalesce((SELECT sum(jobs) FROM headgate.arrival WHERE lane = :lane), 0)::bigint AS waiting,
    bucket.limit_name,
    bucket.key
FROM (SELECT) AS one
LEFT JOIN headgate.lane ON lane.id = :lane
LEFT JOIN headgate.bucket ON bucket.id = lane.behind
