-- AdaptiveRate: the Lua version of `Aimd` in adaptive_rate.py. KEYS, ARGV and results: see bucket.lua.
--
-- ARGV[10..]  low, high, period, start, climb, kept, burst
-- state       "<rate>:<period>:<us>:<ns>:<last>:<cut_at>": full again `ns` nanoseconds after `us` microseconds

local KIND = 'adaptive'
local LOW, HIGH, PERIOD, FIRST = tonumber(ARGV[10]), tonumber(ARGV[11]), tonumber(ARGV[12]), tonumber(ARGV[13])
local CLIMB, KEPT, BURST = tonumber(ARGV[14]), tonumber(ARGV[15]), tonumber(ARGV[16])
local IDLE_KEPT = 7 * 86400 * 1000000
local HUNDRED_YEARS = 100 * 365 * 86400 * 1000000

-- a * b / c, rounded down, and the rest. Their product need not fit a double, but 2 * c must.
local function scaled(a, b, c)
  local rest = math.fmod(b, c)
  local whole, part, left = a * ((b - rest) / c), 0, 0
  local bit = 1
  while bit * 2 <= a do
    bit = bit * 2
  end
  while bit >= 1 do
    part, left = part * 2, left * 2
    if left >= c then
      part, left = part + 1, left - c
    end
    if a >= bit then
      a, left = a - bit, left + rest
      if left >= c then
        part, left = part + 1, left - c
      end
    end
    bit = bit / 2
  end
  return whole + part, left
end

-- The distance of two starts in nanoseconds, rounded up.
local function distance(rate)
  local us, rest = scaled(1000000, PERIOD, rate)
  local ns
  ns, rest = scaled(1000, rest, rate)
  return us * 1000 + ns + (rest > 0 and 1 or 0)
end

-- An instant is {us, ns}. `from`, later by that many starts; earlier if they are negative.
local function later(from, starts, each)
  local us, ns = scaled(math.abs(starts), each, 1000)
  if starts < 0 then
    us, ns = -us, -ns
  end
  us, ns = from[1] + us, from[2] + ns
  if ns >= 1000 then
    us, ns = us + 1, ns - 1000
  elseif ns < 0 then
    us, ns = us - 1, ns + 1000
  end
  return {us, ns}
end

local function is_before(one, other)
  return one[1] < other[1] or one[1] == other[1] and one[2] < other[2]
end

local function rounded_up(instant)
  return instant[2] > 0 and instant[1] + 1 or instant[1]
end

local function load(text)
  local rate, period, us, ns, last, cut_at = string.match(text, '^(%d+):(%d+):(-?%d+):(%d+):(%d+):(%d+)$')
  if rate and period == ARGV[12] and tonumber(rate) >= LOW and tonumber(rate) <= HIGH then
    local arrival = {tonumber(us), tonumber(ns)}
    return {rate = tonumber(rate), arrival = arrival, last = tonumber(last), cut_at = tonumber(cut_at)}
  end
end

local function dump(state)
  local us, ns = state.arrival[1], state.arrival[2]
  return string.format('%.0f:%s:%.0f:%.0f:%.0f:%.0f', state.rate, ARGV[12], us, ns, state.last, state.cut_at)
end

-- The rate for a start now, the arrival, and the last decrease.
local function grown(state, now)
  if not state then
    return FIRST, {now, 0}, 0
  end
  local rate, arrival = state.rate, state.arrival
  local is_used = not is_before(later(arrival, BURST, distance(rate)), {now, 0})
  local elapsed = now - state.last
  if is_used and elapsed > 0 then
    rate = elapsed >= CLIMB and HIGH or math.min(HIGH, rate + scaled(HIGH, elapsed, CLIMB))
  end
  return rate, arrival, state.cut_at
end

local function take(state, now, cost)
  local rate, arrival, cut_at = grown(state, now)
  local each = distance(rate)
  if arrival[1] < now then
    arrival = {now, 0}
  end
  arrival = later(arrival, cost, each)
  local opens_at = math.max(now, rounded_up(later(arrival, -BURST, each)))
  return opens_at, {rate = rate, arrival = arrival, last = opens_at, cut_at = cut_at}
end

local function amend(state, charged_at, cost, started_at, actual)
  if actual < cost and charged_at ~= state.last then
    -- Others have started since: see Aimd.amend.
    actual = cost
  end
  local each = distance(state.rate)
  local moved = {state.arrival[1] + started_at - charged_at, state.arrival[2]}
  local anew = later(state.arrival[1] < started_at and {started_at, 0} or state.arrival, cost, each)
  if is_before(anew, moved) then
    moved = anew
  end
  local last = math.max(state.last, started_at)
  return {rate = state.rate, arrival = later(moved, actual - cost, each), last = last, cut_at = state.cut_at}
end

local function snapshot(state, now)
  local rate, arrival = grown(state, now)
  local full_at = state and rounded_up(arrival) or now
  if arrival[1] < now then
    return BURST, full_at
  end
  local each = distance(rate)
  local used, rest = scaled(1000, arrival[1] - now, each)
  -- Nanoseconds beyond the microsecond may be several distances of a very fast rate.
  used = used + math.ceil((rest + arrival[2]) / each)
  return math.max(0, BURST - used), full_at
end

local function idle_at(state)
  return rounded_up(state.arrival) + IDLE_KEPT
end

-- The state after the callee has refused a start of that instant.
local function refused(state, charged_at, now)
  state = state or {rate = FIRST, arrival = {now, 0}, last = now, cut_at = 0}
  if charged_at <= state.cut_at then
    return state
  end
  local rate, arrival = math.max(LOW, (scaled(KEPT, state.rate, 100))), state.arrival
  if is_before({now, 0}, arrival) then
    -- The same debt, counted in starts.
    local before, after = distance(state.rate), distance(rate)
    local us, rest = scaled(after, arrival[1] - now, before)
    local ns, more
    ns, rest = scaled(1000, rest, before)
    local of_ns
    of_ns, more = scaled(arrival[2], after, before)
    ns = ns + of_ns + math.ceil((rest + more) / before)
    local moved, longest = {now + us + math.floor(ns / 1000), math.fmod(ns, 1000)}, {now + HUNDRED_YEARS, 0}
    -- Many starts of a fast rate may be centuries of a slow one.
    if is_before(longest, moved) then
      moved = is_before(longest, arrival) and arrival or longest
    end
    arrival = moved
  end
  return {rate = rate, arrival = arrival, last = state.last, cut_at = now}
end
