-- The line before a bucket, of messages for another program's broker. This comes after a rule's script and bucket.lua.
-- A message waits in the line, is being sent, or is in flight or unknown.
--
-- KEYS[1]     the bucket, and
-- KEYS[2]     until when it is closed, see bucket.lua
-- KEYS[3]     the line: ids by the instant they came
-- KEYS[4]     messages by id, each "<instant it came>:<message>"
-- KEYS[5]     being sent: ids by the instant at which the sending times out
-- KEYS[6]     in flight: ids that the broker has, by the instant from which their budget is no longer reserved
-- KEYS[7]     of all lines of the limit: when each is due, by the server's clock
-- KEYS[8]     answers to starts, each "<1 or 0><id of the request>", by the instant until which it may be repeated
-- ARGV        1-5 see bucket.lua; 6 cost, 7 how long (microseconds) a new id is being sent or in flight, or a start
--             may be repeated; 8 of release: the maximum, 9 how many starts of that cost ever fit;
--             10.. the rule's numbers; last but one: the line's name in KEYS[7]; last: of arrive: the message;
--             of sent: ids, packed; of start: the id of this request, which its repeats have, too
-- returns     arrive: {1} if it may be published, {0} if it waits in the line now
--             start: {1, now} if it may start and is charged, {0, now} if it may not
--             release: {0, id, message, id, message ...}; sent, forget: {0}
--             all: {-1, now, offset, text} if the text is not of this rule; nothing has been done then

local LINE, MESSAGES, SENDING, SENT, LINES, STARTS = KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local COST, LEASE, MOST, FITTING = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local NAME, PAYLOAD = ARGV[#ARGV - 1], ARGV[#ARGV]
local KNOWN_FOR = 86400 * 1000000
local LOOK_AGAIN = 60 * 1000000

-- 1. Expired leases. A message that was being sent returns to its place. One that was sent no longer has budget
-- reserved, but is still known when it comes: on a busy worker it is late, and must not wait in line again each time.
for _, late in ipairs(redis.call('ZRANGEBYSCORE', SENDING, '-inf', digits(now))) do
  local message = redis.call('HGET', MESSAGES, late)
  redis.call('ZREM', SENDING, late)
  if message then
    redis.call('ZADD', LINE, string.match(message, '^%d+'), late)
  end
end
redis.call('ZREMRANGEBYSCORE', SENT, '-inf', digits(now - KNOWN_FOR))

local function expected()
  return redis.call('ZCARD', SENDING) + redis.call('ZCOUNT', SENT, '(' .. digits(now), '+inf')
end

-- How many more may be released: messages in flight are charged when they start, and have their budget reserved.
local function room()
  local fitting, ahead = math.floor(left() / COST), expected()
  if ahead == 0 and take(state, earliest, COST) <= now then
    -- A new bucket that starts empty grants its first start at any cost.
    fitting = math.max(fitting, 1)
  end
  return fitting - ahead
end

local function under_way(each)
  redis.call('ZADD', SENT, digits(now + LEASE), each)
  redis.call('PEXPIRE', SENT, digits(math.ceil((LEASE + KNOWN_FOR) / 1000)))
end

-- Set when the line is due: when the bucket opens for one more than is expected, or a lease expires. At the latest after
-- a minute, because a bucket that is reset, or gets something back, knows no line.
local function arm()
  local waiting = redis.call('ZCARD', LINE) > 0
  if not waiting and redis.call('ZCARD', SENDING) == 0 then
    redis.call('ZREM', LINES, NAME)
    return
  end
  local at = now + LOOK_AGAIN
  for _, place in ipairs({SENDING, SENT}) do
    local first = redis.call('ZRANGEBYSCORE', place, '(' .. digits(now), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    at = math.min(at, first[2] and tonumber(first[2]) or math.huge)
  end
  local ahead = expected()
  if waiting and ahead < FITTING then
    local opens_at, after = take(state, earliest, COST)
    if ahead > 0 then
      -- Not all at once: a new bucket that starts empty grants its first start at any cost.
      opens_at = take(after, earliest, COST * ahead)
    end
    at = math.min(at, math.max(now, opens_at))
  end
  redis.call('ZADD', LINES, digits(at - offset), NAME)
end

local function forget()
  local was_expected = redis.call('ZREM', SENDING, id) + redis.call('ZREM', SENT, id) > 0
  if was_expected then
    redis.call('HDEL', MESSAGES, id)
  end
  return was_expected
end

-- 2. The verbs.
if verb == 'arrive' then
  if redis.call('ZSCORE', SENDING, id) or redis.call('ZSCORE', SENT, id) then
    return {1}
  end
  local place = redis.call('ZSCORE', LINE, id)
  if not place and redis.call('ZCARD', LINE) == 0 and room() >= 1 then
    under_way(id)
    keep()
    return {1}
  end
  place = place and tonumber(place) or now
  redis.call('ZADD', LINE, digits(place), id)
  redis.call('HSET', MESSAGES, id, digits(place) .. ':' .. PAYLOAD)
  keep()
  arm()
  return {0}
end

local function answer_start(result)
  redis.call('ZREMRANGEBYSCORE', STARTS, '-inf', digits(now))
  redis.call('ZADD', STARTS, digits(now + LEASE), result .. PAYLOAD)
  redis.call('PEXPIRE', STARTS, digits(math.ceil(LEASE / 1000)))
  return {result, now}
end

if verb == 'start' then
  for result = 0, 1 do
    if redis.call('ZSCORE', STARTS, result .. PAYLOAD) then
      -- Its reply was lost.
      keep()
      return {result, now}
    end
  end
  local was_expected = forget()
  local opens_at, after = take(state, earliest, COST)
  if opens_at <= now and (was_expected or room() >= 1) then
    state = after
    save()
    arm()
    return answer_start(1)
  end
  if was_expected then
    -- Others drew on the bucket meanwhile. It becomes the first in line; the next arrive brings its message.
    redis.call('ZADD', LINE, 0, id)
  end
  keep()
  arm()
  return answer_start(0)
end

if verb == 'release' then
  local released = {0}
  local many = math.min(room(), MOST)
  while many > 0 do
    local head = redis.call('ZPOPMIN', LINE)[1]
    if not head then
      break
    end
    local message = redis.call('HGET', MESSAGES, head)
    -- One without a message was refused a moment ago and arrives again.
    if message then
      redis.call('ZADD', SENDING, digits(now + LEASE), head)
      released[#released + 1] = head
      released[#released + 1] = string.sub(message, (string.find(message, ':', 1, true)) + 1)
      many = many - 1
    end
  end
  keep()
  arm()
  return released
end

if verb == 'sent' then
  for _, each in ipairs(cmsgpack.unpack(PAYLOAD)) do
    if redis.call('ZREM', SENDING, each) == 1 then
      redis.call('HDEL', MESSAGES, each)
      under_way(each)
    end
  end
  keep()
  arm()
  return {0}
end

if verb == 'forget' then
  forget()
  redis.call('ZREM', LINE, id)
  redis.call('HDEL', MESSAGES, id)
  keep()
  arm()
  return {0}
end

return redis.error_reply('ERR unknown verb ' .. verb)
