-- The verbs of a bucket alone. This comes after a rule's script and bucket.lua, which documents KEYS and ARGV.

if verb == 'take' then
  local cost, count = tonumber(ARGV[6]), tonumber(ARGV[7])
  local known = id ~= '' and remembered()
  if known then
    return {known[2], known[3], known[4], known[5], known[6]}
  end
  local granted = 0
  if count > 1 then
    -- Take as many as surely fit at once: a script that takes them one by one would block the server.
    granted = math.min(count, math.floor(left() / cost))
    if granted > 0 then
      local _, after = take(state, now, cost * granted)
      state = after
    end
  end
  local opens_at, after = take(state, earliest, cost)
  while opens_at <= now and granted < count do
    granted = granted + 1
    state = after
    opens_at, after = take(state, now, cost)
  end
  local taken = answer(granted, opens_at)
  if granted > 0 then
    save()
    if id ~= '' then
      remember(now + PERIOD, taken, '', '')
    end
  else
    keep()
  end
  return taken
end

if verb == 'reserve' then
  local cost = tonumber(ARGV[6])
  local known = remembered()
  if known then
    return answer(known[3] <= now and 1 or 0, known[3])
  end
  local before = state and dump(state) or ''
  local opens_at, after = take(state, earliest, cost)
  opens_at = math.max(opens_at, now)
  state = after
  if beyond() then
    return too_far()
  end
  local taken = answer(opens_at <= now and 1 or 0, opens_at)
  save()
  remember(opens_at + PERIOD, taken, before, redis.sha1hex(dump(after)))
  return taken
end

if verb == 'cancel' then
  local known = remembered()
  -- Only the latest change can be undone: the bucket then gets its earlier state.
  if not known or not state or known[3] <= now or known[8] ~= redis.sha1hex(dump(state)) then
    keep()
    return {0}
  end
  state = known[7] ~= '' and load(known[7]) or nil
  if state then
    save()
  else
    redis.call('DEL', KEYS[1])
  end
  redis.call('HDEL', KEYS[3], id)
  return {1}
end

if verb == 'amend' then
  local charged_at, cost = tonumber(ARGV[6]), tonumber(ARGV[7])
  local started_at, actual = tonumber(ARGV[8]), tonumber(ARGV[9])
  local before = state and dump(state)
  if not state then
    -- The bucket was forgotten when nothing else counted in it, so the state holds only this start: see Rule.
    if actual == 0 then
      return {0}
    end
    cost = 1
    local _, alone = take(nil, charged_at, cost)
    state = alone
  end
  state = amend(state, charged_at, cost, started_at, actual)
  if beyond() then
    return too_far()
  end
  save()
  return {dump(state) == before and 0 or now}
end

if verb == 'penalize' then
  local closed_for = tonumber(ARGV[6])
  if now + closed_for > earliest then
    local over_in = math.ceil(closed_for / 1000) + 1
    if test_time ~= '' then
      over_in = over_in + 3600000
    end
    redis.call('SET', KEYS[2], digits(now + closed_for), 'PX', digits(over_in))
  end
  keep()
  return {1}
end

if verb == 'refuse' then
  local charged_at = tonumber(ARGV[6])
  if charged_at or earliest <= now then
    state = refused(state, charged_at or now, now)
    save()
  else
    keep()
  end
  return {1}
end

return redis.error_reply('ERR unknown verb ' .. verb)
