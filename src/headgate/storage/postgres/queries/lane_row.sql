-- A lane as the claim reads it. One that was asleep is in line since it woke.
json_build_array(
    lane.id, lane.queue, lane.draws, lane.waiting,
    coalesce(lane.since, (SELECT limit_now - now FROM instant) + lane.wakes_at), lane.behind, lane.wakes_at,
    lane.variant, lane.opened_at
)
