-- SlidingWindow: the Lua version of `SliceCounter` in sliding_window.py. KEYS, ARGV and results: see bucket.lua.
--
-- ARGV[10..]  count, slice, slices
-- state       "<count>:<slice>:<slices>:<total>:<newest>:<used>:<older>": the sum, the newest slice and what is used in
--             it, and the older slices that are not empty, oldest first, as "<number> <used> <number> <used> "

local KIND = 'sliding'
local COUNT, SLICE, SLICES = tonumber(ARGV[10]), tonumber(ARGV[11]), tonumber(ARGV[12])
local PERIOD = SLICE * SLICES

local function slice_of(instant)
  return (instant - math.fmod(instant, SLICE)) / SLICE
end

local function pair(number, used)
  return string.format('%.0f %.0f ', number, used)
end

local function load(text)
  local slice, slices, total, newest, used, older = string.match(text, '^%d+:(%d+):(%d+):(%d+):(%d+):(%d+):([%d ]*)$')
  if slice and slice == ARGV[11] and slices == ARGV[12] then
    return {total = tonumber(total), newest = tonumber(newest), used = tonumber(used), older = older}
  end
end

local function dump(state)
  local numbers = string.format('%.0f:%.0f:%.0f:', state.total, state.newest, state.used)
  return table.concat({ARGV[10], ARGV[11], ARGV[12], numbers}, ':') .. state.older
end

-- The window advanced to a later slice, without what left it.
local function moved(state, to)
  local total, older = state.total, state.older
  if state.used > 0 then
    older = older .. pair(state.newest, state.used)
  end
  local kept = 1
  for number, used, past in string.gmatch(older, '(%d+) (%d+) ()') do
    if tonumber(number) > to - SLICES then
      break
    end
    total = total - tonumber(used)
    kept = past
  end
  return {total = total, newest = to, used = 0, older = string.sub(older, kept)}
end

-- The slice in which enough has left the window for `cost` to fit.
local function opening(state, cost)
  local excess = state.total + cost - COUNT
  for number, used in string.gmatch(state.older, '(%d+) (%d+) ') do
    excess = excess - tonumber(used)
    if excess <= 0 then
      return tonumber(number) + SLICES
    end
  end
  return state.newest + SLICES
end

local function take(state, now, cost)
  local current = slice_of(now)
  if not state then
    return now, {total = cost, newest = current, used = cost, older = ''}
  end
  if current > state.newest then
    state = moved(state, current)
  end
  if state.total + cost > COUNT then
    state = moved(state, opening(state, cost))
  end
  local after = {total = state.total + cost, newest = state.newest, used = state.used + cost, older = state.older}
  return math.max(now, after.newest * SLICE), after
end

local function amend(state, charged_at, cost, started_at, actual)
  local charged, started, newest = slice_of(charged_at), slice_of(started_at), state.newest
  local held = {[newest] = state.used}
  for number, used in string.gmatch(state.older, '(%d+) (%d+) ') do
    held[tonumber(number)] = tonumber(used)
  end
  -- What left the window is forgotten. A charge that left and starts inside the window counts in it.
  local known = charged <= newest - SLICES and cost or math.min(cost, held[charged] or 0)
  if held[charged] then
    held[charged] = held[charged] - known
  end
  local many = math.max(0, known + actual - cost)
  if many > 0 then
    held[started] = (held[started] or 0) + many
    newest = math.max(newest, started)
  end
  local numbers = {}
  for number, used in pairs(held) do
    if used > 0 and number > newest - SLICES and number ~= newest then
      numbers[#numbers + 1] = number
    end
  end
  table.sort(numbers)
  local used = held[newest] or 0
  local total, older = used, ''
  for _, number in ipairs(numbers) do
    total = total + held[number]
    older = older .. pair(number, held[number])
  end
  return {total = total, newest = newest, used = used, older = older}
end

local function idle_at(state)
  local last = state.newest
  if state.used == 0 then
    last = tonumber(string.match(state.older, '(%d+) %d+ $')) or last - SLICES
  end
  return (last + SLICES) * SLICE
end

local function snapshot(state, now)
  local used = 0
  if state then
    local current = slice_of(now)
    used = (current > state.newest and moved(state, current) or state).total
  end
  local opens_at = take(state, now, 1)
  return opens_at <= now and math.max(0, COUNT - used) or 0, state and idle_at(state) or now
end
