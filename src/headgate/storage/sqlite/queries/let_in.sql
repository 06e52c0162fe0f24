-- The lanes of a batch that holds a permit wait behind its bucket no more; :lines is an array of [bucket, batch].
UPDATE lane SET behind = NULL, opened_at = :limit_now
FROM json_each(:lines) AS line
WHERE lane.behind = json_extract(line.value, '$[0]') AND instr(lane.variant, json_extract(line.value, '$[1]')) > 0
