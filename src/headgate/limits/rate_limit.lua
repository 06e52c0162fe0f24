-- RateLimit: the Lua version of `Gcra` in rate_limit.py. KEYS, ARGV and results: see bucket.lua.
--
-- ARGV[10..]  count, period, burst, 1 to start empty
-- state       "<us>:<part>:<count>:<period>:<last>": full again after `us` microseconds and `part / count` of one more;
--             the last start was at `last`

local KIND = 'rate'
local COUNT, PERIOD, BURST = tonumber(ARGV[10]), tonumber(ARGV[11]), tonumber(ARGV[12])
local START_EMPTY = ARGV[13] == '1'
local START_EMPTY_KEPT = 7 * 86400 * 1000000

-- One start takes period / count: whole microseconds and a fraction. Their product would not fit a double.
local STEP_PART = math.fmod(PERIOD, COUNT)
local STEP = (PERIOD - STEP_PART) / COUNT

local function lasting(starts)
  local part = starts * STEP_PART
  local rest = math.fmod(part, COUNT)
  if rest < 0 then
    rest = rest + COUNT
  end
  return starts * STEP + (part - rest) / COUNT, rest
end

-- `from`, later by that many starts; earlier if they are negative.
local function later(from, starts)
  local us, part = lasting(starts)
  part = from.part + part
  if part >= COUNT then
    us, part = us + 1, part - COUNT
  end
  return {us = from.us + us, part = part, last = from.last}
end

local function rounded_up(instant)
  return instant.part > 0 and instant.us + 1 or instant.us
end

local function fresh(now, cost)
  local instant = {us = now, part = 0, last = now}
  return START_EMPTY and later(instant, BURST - cost) or instant
end

local function load(text)
  local us, part, count, period, last = string.match(text, '^(-?%d+):(%d+):(%d+):(%d+):(%d+)$')
  if us and count == ARGV[10] and period == ARGV[11] then
    return {us = tonumber(us), part = tonumber(part), last = tonumber(last)}
  end
end

local function dump(state)
  return string.format('%.0f:%.0f:%s:%s:%.0f', state.us, state.part, ARGV[10], ARGV[11], state.last)
end

local function take(state, now, cost)
  local arrival = state or fresh(now, cost)
  if arrival.us < now then
    arrival = {us = now, part = 0}
  end
  local opens_at = math.max(now, rounded_up(later(arrival, cost - BURST)))
  local after = later(arrival, cost)
  after.last = opens_at
  return opens_at, after
end

local function amend(state, charged_at, cost, started_at, actual)
  if actual < cost and charged_at ~= state.last then
    -- Others have started since: see Gcra.amend.
    actual = cost
  end
  local last = math.max(state.last, started_at)
  local moved = {us = state.us + started_at - charged_at, part = state.part}
  local anew = later(state.us < started_at and {us = started_at, part = 0} or state, cost)
  if anew.us < moved.us or anew.us == moved.us and anew.part < moved.part then
    moved = anew
  end
  moved.last = last
  return later(moved, actual - cost)
end

local function snapshot(state, now)
  local arrival = state or fresh(now, 1)
  local full_at = state and rounded_up(state) or now
  if arrival.us < now then
    return BURST, full_at
  end
  -- The smallest number of starts that covers the debt. The division is right except for rounding.
  local owed = arrival.us - now
  local function covers(starts)
    local us, part = lasting(starts)
    return us > owed or us == owed and part >= arrival.part
  end
  local used = math.max(0, math.min(BURST, math.ceil((owed * COUNT + arrival.part) / PERIOD)))
  while used < BURST and not covers(used) do
    used = used + 1
  end
  while used > 0 and covers(used - 1) do
    used = used - 1
  end
  return BURST - used, full_at
end

local function idle_at(state)
  return rounded_up(state) + (START_EMPTY and START_EMPTY_KEPT or 0)
end
