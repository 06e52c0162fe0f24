-- StrictRate: the Lua version of `SlidingLog` in strict_rate.py. This comes after instants.lua. KEYS, ARGV and results:
-- see bucket.lua.
--
-- ARGV[10..]  count, period
-- state       the instants that still count, see instants.lua

local KIND = 'strict'
local MAX_COUNT = 1000
local COUNT, PERIOD = tonumber(ARGV[10]), tonumber(ARGV[11])

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
  return opens_at, starts .. string.rep(packed(opens_at), cost)
end

local function amend(state, charged_at, cost, started_at, actual)
  -- More starts at one instant than any count allows would all be stored and close the window no longer.
  cost, actual = math.min(cost, MAX_COUNT), math.min(actual, MAX_COUNT)
  -- What has left the window meanwhile no longer counts and is not brought back.
  local rest, known = without(state, charged_at, cost)
  return with(rest, started_at, math.max(0, known + actual - cost))
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
