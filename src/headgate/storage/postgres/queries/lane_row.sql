-- A lane as the claim reads it. One that was asleep is in line since it woke.
json_build_array(
    encode(lane.id, 'base64'), lane.queue, lane.draws, lane.waiting,
    coalesce(lane.since, (SELECT limit_now - now FROM instant) + lane.wakes_at), encode(lane.behind, 'base64'), lane.wakes_at,
    lane.variant, lane.opened_at
)
