-- DynamicWindow: the Lua version of `SharedCounter` in dynamic_window.py. KEYS, ARGV and results: see bucket.lua.
--
-- KEYS[1]     one for all keys of the limit
-- ARGV[10..]  slice, slices, capacity, most_keys, max_count, the key
-- state       "<slice>:<slices>:" and, packed by cmsgpack, {used, active, slices, keys}: what counts and how many keys
--             are active; slices of {number, used, number of keys with their last start there}, oldest first; keys of
--             {key, {slice, used, slice, used, ..}} in the order in which they became active

local KIND = 'dynamic'
local SLICE, SLICES, CAPACITY = tonumber(ARGV[10]), tonumber(ARGV[11]), tonumber(ARGV[12])
local MOST_KEYS, MAX_COUNT, KEY = tonumber(ARGV[13]), tonumber(ARGV[14]), ARGV[15]
local PERIOD = SLICE * SLICES

-- The content of a slice that is unknown.
local UNKNOWN = 1099511627776

local function slice_of(instant)
  return (instant - math.fmod(instant, SLICE)) / SLICE
end

local function load(text)
  local slice, slices, packed = string.match(text, '^(%d+):(%d+):(.*)$')
  if slice == ARGV[10] and slices == ARGV[11] then
    local is_readable, parts = pcall(cmsgpack.unpack, packed)
    if is_readable then
      return {used = parts[1], active = parts[2], slices = parts[3], keys = parts[4]}
    end
  end
end

local function dump(state)
  return ARGV[10] .. ':' .. ARGV[11] .. ':' .. cmsgpack.pack({state.used, state.active, state.slices, state.keys})
end

-- What the key holds, and its place among all keys.
local function held_in(state)
  for place, entry in ipairs(state.keys) do
    if entry[1] == KEY then
      return entry[2], place
    end
  end
  return {}
end

local function last_slice(held)
  return held[#held - 1]
end

-- 1. What counts for the key at an instant; `move_on` goes to a later one, without starts between.
local function leave(view, oldest)
  view.oldest = oldest
  local slices, held = view.state.slices, view.held
  while slices[view.gone + 1] and slices[view.gone + 1][1] < oldest do
    view.gone = view.gone + 1
    view.used = view.used - slices[view.gone][2]
    view.active = view.active - slices[view.gone][3]
  end
  while view.left < #held and held[view.left + 1] < oldest do
    view.own = view.own - held[view.left + 2]
    view.left = view.left + 2
  end
end

local function view_of(state, now)
  local at = slice_of(now)
  local newest = state.slices[#state.slices]
  if newest and at < newest[1] then
    at = newest[1]
    now = at * SLICE
  end
  local held = held_in(state)
  local view = {state = state, at = at, instant = now, used = state.used, active = state.active}
  view.held, view.own, view.gone, view.left = held, 0, 0, 0
  for place = 2, #held, 2 do
    view.own = view.own + held[place]
  end
  leave(view, at - SLICES)
  -- In the first microsecond of a slice, what leaves the window still counts for keys that have starts in it.
  view.waits = now == at * SLICE and view.left < #held and held[view.left + 1] < at
  if not view.waits then
    leave(view, at - SLICES + 1)
  end
  return view
end

-- Whether the key is among the first `rest` keys that became active.
local function is_among_first(view, rest)
  local keys = view.state.keys
  local is_all = #keys == view.active
  for _, entry in ipairs(keys) do
    if is_all or last_slice(entry[2]) >= view.oldest then
      if rest == 0 then
        return false
      end
      if entry[1] == KEY then
        return true
      end
      rest = rest - 1
    end
  end
  return false
end

-- How much of the key may go at the instant; exact up to `cost`.
local function room(view, cost)
  local own = view.own
  local active = own > 0 and view.active or view.active + 1
  if active > MOST_KEYS and (own == 0 or view.waits) then
    return 0
  end
  if view.used >= UNKNOWN then
    return 0
  end
  if CAPACITY == 0 then
    return MAX_COUNT - own
  end
  local left = CAPACITY - view.used
  local rest = math.fmod(CAPACITY, active)
  local share = (CAPACITY - rest) / active
  if share >= MAX_COUNT then
    share = MAX_COUNT
  elseif own > 0 and own <= share and share - own < math.min(cost, left) and is_among_first(view, rest) then
    share = share + 1
  end
  return math.min(share - own, left)
end

-- Go to the next instant at which there may be more room.
local function move_on(view)
  if view.waits then
    view.waits = false
    view.instant = view.instant + 1
  else
    view.at = view.state.slices[view.gone + 1][1] + SLICES
    view.instant = view.at * SLICE + (view.left < #view.held and 1 or 0)
  end
  leave(view, view.at - SLICES + 1)
end

-- 2. States are never changed; new ones are built from parts of others.
local function kept(state, keep)
  local slices, used, active = {}, state.used, state.active
  local has_left = false
  for _, part in ipairs(state.slices) do
    if #slices == 0 and part[1] < keep then
      used, active = used - part[2], active - part[3]
      has_left = has_left or part[3] > 0
    else
      slices[#slices + 1] = part
    end
  end
  local keys = state.keys
  if has_left then
    keys = {}
    for _, entry in ipairs(state.keys) do
      if last_slice(entry[2]) >= keep then
        keys[#keys + 1] = entry
      end
    end
  end
  return {used = used, active = active, slices = slices, keys = keys}
end

-- Pairs of number and used, sorted, without empty ones.
local function flat(sums)
  local numbers, pairs_of = {}, {}
  for number, used in pairs(sums) do
    if used ~= 0 then
      numbers[#numbers + 1] = number
    end
  end
  table.sort(numbers)
  for _, number in ipairs(numbers) do
    pairs_of[#pairs_of + 1] = number
    pairs_of[#pairs_of + 1] = sums[number]
  end
  return pairs_of
end

local function held_after(before, number, change, oldest)
  local sums = {}
  for place = 1, #before, 2 do
    if before[place] >= oldest then
      sums[before[place]] = before[place + 1]
    end
  end
  sums[number] = (sums[number] or 0) + change
  return flat(sums)
end

local function slices_after(parts, number, change, before, after)
  local sums, numbers = {}, {}
  local function at(place)
    if not sums[place] then
      sums[place] = {place, 0, 0}
      numbers[#numbers + 1] = place
    end
    return sums[place]
  end
  for _, part in ipairs(parts) do
    local sum = at(part[1])
    sum[2], sum[3] = part[2], part[3]
  end
  at(number)[2] = at(number)[2] + change
  if #before > 0 then
    local last = at(last_slice(before))
    last[3] = last[3] - 1
  end
  if #after > 0 then
    local last = at(last_slice(after))
    last[3] = last[3] + 1
  end
  table.sort(numbers)
  local slices = {}
  for place, found in ipairs(numbers) do
    if sums[found][2] ~= 0 or place == #numbers then
      slices[#slices + 1] = sums[found]
    end
  end
  return slices
end

-- The state in which the key has `change` more in one slice, without what lies before slice `keep`.
local function changed(state, number, change, keep, becomes_active)
  state = kept(state, keep)
  local before, own_place = held_in(state)
  -- Starts of the key before the first slice no longer count, although its own record still holds them.
  local after = held_after(before, number, change, state.slices[1] and state.slices[1][1] or number)
  local keys = {}
  for place, entry in ipairs(state.keys) do
    if place ~= own_place then
      keys[#keys + 1] = entry
    elseif #after > 0 and not becomes_active then
      keys[#keys + 1] = {KEY, after}
    end
  end
  if #after > 0 and (becomes_active or not own_place) then
    keys[#keys + 1] = {KEY, after}
  end
  return {
    used = state.used + change,
    active = state.active + (#after > 0 and 1 or 0) - (#before > 0 and 1 or 0),
    slices = slices_after(state.slices, number, change, before, after),
    keys = keys,
  }
end

local NOTHING = {used = 0, active = 0, slices = {}, keys = {}}

-- 3. The rule.
local function take(state, now, cost)
  state = state or NOTHING
  local view = view_of(state, now)
  while room(view, cost) < cost do
    move_on(view)
  end
  -- Keep the slice that leaves until the first microsecond of slice `view.at` is over.
  local keep = view.at - SLICES + (now > view.at * SLICE and 1 or 0)
  return view.instant, changed(state, view.at, cost, keep, view.own == 0)
end

local function amend(state, charged_at, cost, started_at, actual)
  local charged, started = slice_of(charged_at), slice_of(started_at)
  local oldest = state.slices[#state.slices][1] - SLICES + 1
  local in_charged = 0
  local held = held_in(state)
  for place = 1, #held, 2 do
    if held[place] == charged then
      in_charged = held[place + 1]
    end
  end
  -- What left the window is forgotten. A charge that left and starts inside the window counts in it.
  local known = charged < oldest and cost or math.min(cost, in_charged)
  local moved = math.max(0, known + actual - cost)
  local keep = math.max(oldest, moved > 0 and started - SLICES + 1 or oldest) - 1
  -- Add before removing: in between, the key must not lose its place among the active ones.
  if moved > 0 and started > keep then
    state = changed(state, started, moved, keep)
  end
  if known > 0 and charged >= math.max(oldest, keep) then
    state = changed(state, charged, -known, keep)
  end
  return state
end

local function idle_at(state)
  for place = #state.slices, 1, -1 do
    if state.slices[place][2] ~= 0 then
      -- In the first microsecond after it, keys with starts in it still come after keys without.
      return (state.slices[place][1] + SLICES) * SLICE + (#state.keys > 0 and 1 or 0)
    end
  end
  return state.slices[#state.slices][1] * SLICE
end

local function snapshot(state, now)
  local view = view_of(state or NOTHING, now)
  local available = view.instant <= now and math.max(0, room(view, MAX_COUNT)) or 0
  return available, state and idle_at(state) or now
end
