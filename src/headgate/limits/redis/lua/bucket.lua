-- What all rules share. This comes after a rule's own script and calls its functions. After it come the verbs:
-- verbs.lua for a bucket alone, or line.lua for the line before it.
--
-- KEYS[1]  the bucket: "1:<kind>:<latest instant>:<offset>:<state>"; expires once it is idle
-- KEYS[2]  until when it is closed, whatever is left of it; expires once it is open
-- KEYS[3]  the answers given under an id (with an id and for reset): a hash of id to answer
-- ARGV     1 the verb, 2 the id or "", 3 the instant (for tests; "" is the server's time),
--          4 and 5 a text of the bucket and its replacement if the bucket still has this text (5 is "" for none),
--          6-9 of take: cost, count; of reserve: cost; of amend: charged_at, cost, started_at, actual;
--          of penalize: for how long; of refuse (of a rule that adapts only): charged_at or ""
--          10.. the rule's numbers
-- returns  take, reserve: {granted, opens_at, now, available, full_at}
--          cancel: {1 or 0}; amend: {now, or 0}; penalize, refuse, reset: {1}; snapshot: {now, the bucket's text or false, closed until}
--          all but the last two: {-1, now, offset, text} if the text is not of this rule; nothing has been done then
--
-- All numbers are whole and below 2^53, where doubles count exactly. `%` rounds its quotient, so it is math.fmod here.

local verb, id, test_time = ARGV[1], ARGV[2], ARGV[3]

local function digits(number)
  return string.format('%.0f', number)
end

if verb == 'reset' then
  redis.call('DEL', KEYS[1], KEYS[2], KEYS[3])
  return {1}
end

-- 1. The bucket, and its time, which never goes back: when the server's clock does, it continues from the latest
-- instant. Not MGET, which returns nil for a key of another type.
local stored, closed_until = redis.call('GET', KEYS[1]), tonumber(redis.call('GET', KEYS[2]) or 0)
local latest, offset, state = 0, 0, nil
local unsaved = false
if stored and ARGV[5] ~= '' and stored == ARGV[4] then
  stored = ARGV[5]
  unsaved = true
end

local clock = tonumber(test_time)
if not clock then
  local time = redis.call('TIME')
  clock = time[1] * 1000000 + time[2]
end

if stored then
  local kind, seen, ahead, text = string.match(stored, '^1:(%l+):(%d+):(%d+):(.*)$')
  if kind then
    latest, offset = tonumber(seen), tonumber(ahead)
  end
  state = kind == KIND and load(text) or nil
end
local now = clock + offset
if now < latest then
  offset = latest - clock
  now = latest
  unsaved = true
end
if verb == 'snapshot' then
  return {now, stored, closed_until}
end
if stored and not state then
  return {-1, now, offset, stored}
end

-- The earliest instant at which a start may go.
local earliest = math.max(now, closed_until)

local function save()
  unsaved = false
  -- One more than rounded up: Redis may read its clock a little later than this script did.
  local idle_in = math.max(0, math.ceil((idle_at(state) - now) / 1000)) + 1
  if test_time ~= '' then
    -- A test has its own time, so the real clock must not expire its keys.
    idle_in = idle_in + 3600000
  end
  local text = string.format('1:%s:%.0f:%.0f:', KIND, now, offset) .. dump(state)
  redis.call('SET', KEYS[1], text, 'PX', digits(idle_in))
end

local function keep()
  if unsaved and state then
    save()
  elseif stored and redis.call('PTTL', KEYS[1]) == -1 then
    -- Another program has removed its expiry.
    save()
  end
end

-- 2. Answers under an id.
local function remembered()
  local packed = redis.call('HGET', KEYS[3], id)
  if packed then
    local answer = {cmsgpack.unpack(packed)}
    if answer[1] > now then
      keep()
      return answer
    end
  end
end

local function remember(over_at, taken, before, after)
  local answer = cmsgpack.pack(over_at, taken[1], taken[2], taken[3], taken[4], taken[5], before, after)
  redis.call('HSET', KEYS[3], id, answer)
  -- Each new answer checks two others and removes them if they are over, so the hash stays small.
  for _, other in ipairs(redis.call('HRANDFIELD', KEYS[3], 2)) do
    if cmsgpack.unpack(redis.call('HGET', KEYS[3], other)) <= now then
      redis.call('HDEL', KEYS[3], other)
    end
  end
  local over_in = math.ceil((over_at - now) / 1000) + 1
  if test_time ~= '' then
    over_in = over_in + 3600000
  end
  if redis.call('PTTL', KEYS[3]) < over_in then
    redis.call('PEXPIRE', KEYS[3], digits(over_in))
  end
end

-- How many starts of cost 1 are left, and when the bucket has its whole budget again.
local function left()
  local available, full_at = snapshot(state, now)
  return earliest > now and 0 or available, math.max(earliest, full_at)
end

local function answer(granted, opens_at)
  return {granted, opens_at, now, left()}
end

local function beyond()
  return state and idle_at(state) > 9007199254740991
end

local function too_far()
  return redis.error_reply('FAR the bucket would open later than can be counted')
end
