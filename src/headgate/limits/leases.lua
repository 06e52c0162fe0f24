-- Leases: the Lua version of `Leases` in leases.py. KEYS, ARGV and results: see bucket.lua.
--
-- ARGV[10..]  count, period
-- state       the instant of the last grant, then when each lease ends, earliest first: little-endian integers of 8 bytes

local KIND = 'lease'
local COUNT, PERIOD = tonumber(ARGV[10]), tonumber(ARGV[11])
local KEPT_FOR = 86400 * 1000000

local function packed(instant)
  return struct.pack('<i8', instant)
end

local function size(ends)
  return #ends / 8
end

local function at(ends, place)
  return (struct.unpack('<i8', ends, 8 * place - 7))
end

-- How many are not later than `instant`.
local function not_after(ends, instant)
  local low, high = 0, size(ends)
  while low < high do
    local middle = math.floor((low + high + 1) / 2)
    if at(ends, middle) <= instant then
      low = middle
    else
      high = middle - 1
    end
  end
  return low
end

local function without_first(ends, many)
  return many > 0 and string.sub(ends, 8 * many + 1) or ends
end

local function open(ends, now)
  return without_first(ends, not_after(ends, now))
end

local function with(ends, instant, many)
  local place = not_after(ends, instant)
  return string.sub(ends, 1, 8 * place) .. string.rep(packed(instant), many) .. without_first(ends, place)
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
  local lease = charged_at + PERIOD
  local first, past = not_after(state.ends, lease - 1), not_after(state.ends, lease)
  local known = math.min(cost, past - first)
  local rest = string.sub(state.ends, 1, 8 * first) .. without_first(state.ends, first + known)
  local moved = math.max(0, known + actual - cost)
  return {last = state.last, ends = with(rest, started_at + PERIOD, moved)}
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
