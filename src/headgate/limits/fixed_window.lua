-- FixedWindow: the Lua version of `WindowCounter` in fixed_window.py. KEYS, ARGV and results: see bucket.lua.
--
-- ARGV[10..]  count, period, margin
-- state       "<begin>:<used>:<count>:<period>": the latest window with a start

local KIND = 'fixed'
local COUNT, PERIOD, MARGIN = tonumber(ARGV[10]), tonumber(ARGV[11]), tonumber(ARGV[12])

-- The beginning of the window in which a start of this instant counts.
local function window(instant)
  local reached = instant + MARGIN
  return reached - math.fmod(reached, PERIOD)
end

local function load(text)
  local begin, used, period = string.match(text, '^(%d+):(%d+):%d+:(%d+)$')
  if begin and period == ARGV[11] then
    return {begin = tonumber(begin), used = tonumber(used)}
  end
end

local function dump(state)
  return string.format('%.0f:%.0f:%s:%s', state.begin, state.used, ARGV[10], ARGV[11])
end

local function take(state, now, cost)
  local begin, used = window(now), cost
  if state and state.begin >= begin then
    begin, used = state.begin, state.used + cost
    if used > COUNT then
      begin, used = begin + PERIOD, cost
    end
  end
  return math.max(now, begin), {begin = begin, used = used}
end

local function amend(state, charged_at, cost, started_at, actual)
  local begin, used = state.begin, state.used
  local charged, started = window(charged_at), window(started_at)
  -- An older window is forgotten. What was charged there and starts in this one counts in this one.
  local known = 0
  if charged < begin then
    known = cost
  elseif charged == begin then
    known = math.min(cost, used)
    used = used - known
  end
  local moved = math.max(0, known + actual - cost)
  if started > begin and moved > 0 then
    return {begin = started, used = moved}
  end
  return {begin = begin, used = started == begin and used + moved or used}
end

local function idle_at(state)
  return state.begin - MARGIN + (state.used > 0 and PERIOD or 0)
end

local function snapshot(state, now)
  local used = state and state.begin + PERIOD > now and state.used or 0
  local opens_at = take(state, now, 1)
  return opens_at <= now and math.max(0, COUNT - used) or 0, state and idle_at(state) or now
end
