-- Leases: the Lua version of `Leases` in leases.py. This comes after instants.lua. KEYS, ARGV and results: see
-- bucket.lua.
--
-- ARGV[10..]  count, period
-- state       the instant of the last grant, then when each lease ends, see instants.lua

local KIND = 'lease'
local COUNT, PERIOD = tonumber(ARGV[10]), tonumber(ARGV[11])
local KEPT_FOR = 86400 * 1000000

local function open(ends, now)
  return without_first(ends, not_after(ends, now))
end

local function load(text)
  if #text >= 8 and #text % 8 == 0 then
    return {last = at(text, 1), ends = string.sub(text, 9)}
  end
end

local function dump(state)
  return packed(state.last) .. state.ends
end

local function take(state, now, cost)
  local ends = state and state.ends or ''
  local opens_at = state and math.max(now, state.last + 1) or now
  local opened = open(ends, now)
  local excess = size(opened) + cost - COUNT
  if excess > 0 then
    opens_at = math.max(opens_at, at(opened, excess))
  end
  return opens_at, {last = opens_at, ends = with(open(ends, opens_at), opens_at + PERIOD, cost)}
end

local function amend(state, charged_at, cost, started_at, actual)
  -- A lease that has ended, and was granted to another holder since, is not there any more.
  local rest, known = without(state.ends, charged_at + PERIOD, cost)
  return {last = state.last, ends = with(rest, started_at + PERIOD, math.max(0, known + actual - cost))}
end

local function full_at(state)
  return #state.ends > 0 and at(state.ends, size(state.ends)) or 0
end

local function snapshot(state, now)
  local opens_at = take(state, now, 1)
  local available = opens_at <= now and math.max(0, COUNT - (state and size(open(state.ends, now)) or 0)) or 0
  return available, state and full_at(state) or now
end

local function idle_at(state)
  return math.max(state.last + KEPT_FOR, full_at(state))
end
