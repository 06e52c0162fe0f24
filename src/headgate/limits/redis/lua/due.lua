-- The lines that are due, each returned to one caller. If that caller does nothing, another one receives it later.
--
-- KEYS     when each line is due, by the server's clock: a key for each limit of the caller
-- ARGV     1 how long (microseconds) no other caller receives a line, 2 the maximum of lines
-- returns  {microseconds until the next line is due, or -1, name, name ...}

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local due, reply = {}, {-1}
for _, key in ipairs(KEYS) do
  local from, to = '-inf', string.format('%.0f', now)
  if redis.call('ZCOUNT', key, from, to) == 0 then
    -- Each line is due within a minute, see LOOK_AGAIN in line.lua: these are late, as the clock was set back.
    from, to = '(' .. string.format('%.0f', now + 60000000), '+inf'
  end
  local found = redis.call('ZRANGEBYSCORE', key, from, to, 'WITHSCORES', 'LIMIT', 0, ARGV[2])
  for place = 1, #found, 2 do
    due[#due + 1] = {key, found[place], tonumber(found[place + 1])}
  end
end
table.sort(due, function(one, other) return one[3] < other[3] end)
for place = 1, math.min(#due, tonumber(ARGV[2])) do
  local key, name = due[place][1], due[place][2]
  redis.call('ZADD', key, string.format('%.0f', now + ARGV[1]), name)
  reply[place + 1] = name
end
for _, key in ipairs(KEYS) do
  local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
  if first and (reply[1] < 0 or first - now < reply[1]) then
    reply[1] = math.max(0, first - now)
  end
end
return reply
