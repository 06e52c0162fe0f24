-- StrictRate: the Lua version of `SlidingLog` in strict_rate.py. KEYS, ARGV and results: see bucket.lua.
--
-- ARGV[10..]  count, period
-- state       the instants that still count, oldest first, each a little-endian integer of 8 bytes

local KIND = 'strict'
local MAX_COUNT = 1000
local COUNT, PERIOD = tonumber(ARGV[10]), tonumber(ARGV[11])

local function size(starts)
  return #starts / 8
end

local function at(starts, place)
  return (struct.unpack('<i8', starts, 8 * place - 7))
end

-- How many are not later than `instant`.
local function not_after(starts, instant)
  local low, high = 0, size(starts)
  while low < high do
    local middle = math.floor((low + high + 1) / 2)
    if at(starts, middle) <= instant then
      low = middle
    else
      high = middle - 1
    end
  end
  return low
end

local function without_first(starts, many)
  return many > 0 and string.sub(starts, 8 * many + 1) or starts
end

local function counting(starts, now)
  return without_first(starts, not_after(starts, now - PERIOD))
end

local function load(text)
  return #text % 8 == 0 and text or nil
end

local function dump(state)
  return state
end

local function take(state, now, cost)
  local starts = counting(state or '', now)
  local many = size(starts)
  local opens_at = many > 0 and math.max(now, at(starts, many)) or now
  -- The oldest `excess` starts must leave the window first.
  local excess = many + cost - COUNT
  if excess > 0 then
    opens_at = math.max(opens_at, at(starts, excess) + PERIOD)
    starts = counting(starts, opens_at)
  end
  return opens_at, starts .. string.rep(struct.pack('<i8', opens_at), cost)
end

local function amend(state, charged_at, cost, started_at, actual)
  -- More starts at one instant than any count allows would all be stored and close the window no longer.
  cost, actual = math.min(cost, MAX_COUNT), math.min(actual, MAX_COUNT)
  -- What has left the window meanwhile no longer counts and is not brought back.
  local first, past = not_after(state, charged_at - 1), not_after(state, charged_at)
  local known = math.min(cost, past - first)
  local rest = string.sub(state, 1, 8 * first) .. without_first(state, first + known)
  local place = not_after(rest, started_at)
  local moved = string.rep(struct.pack('<i8', started_at), math.max(0, known + actual - cost))
  return string.sub(rest, 1, 8 * place) .. moved .. without_first(rest, place)
end

local function snapshot(state, now)
  local starts = counting(state or '', now)
  local many = size(starts)
  local is_open = many < COUNT and (many == 0 or at(starts, many) <= now)
  return is_open and COUNT - many or 0, state and #state > 0 and at(state, size(state)) + PERIOD or now
end

local function idle_at(state)
  return #state > 0 and at(state, size(state)) + PERIOD or 0
end
