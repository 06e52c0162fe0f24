-- Blocked jobs wait in their lanes, ready now or at the time that was asked for them; :jobs is an array of
-- [seq, lane, patience].
UPDATE job
SET state = 'waiting',
    lane = json_extract(released.value, '$[1]'),
    delayed = delayed AND run_at > :now,
    run_at = max(run_at, :now),
    give_up_at = max(run_at, :now) + json_extract(released.value, '$[2]')
FROM json_each(:jobs) AS released
WHERE job.seq = json_extract(released.value, '$[0]') AND +job.state = 'blocked'
