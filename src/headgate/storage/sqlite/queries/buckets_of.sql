-- The buckets of these draws that have been seen; :draws is an array of [limit, key].
SELECT json_group_array(json_array(bucket.id, limit_name, bucket.key, state, opens_at, closed_until))
FROM json_each(:draws) AS draw
JOIN bucket ON limit_name = json_extract(draw.value, '$[0]') AND bucket.key = json_extract(draw.value, '$[1]')
