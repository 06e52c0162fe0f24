-- The lines that are due, each returned to one caller. If that caller does nothing, another one receives it later.
--
-- KEYS[1]  of all lines: when each is due, by the server's clock
-- ARGV     1 how long (microseconds) no other caller receives a line, 2 the maximum of lines
-- returns  {microseconds until the next line is due, or -1, name, name ...}

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local names = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now), 'LIMIT', 0, ARGV[2])
if #names == 0 then
  -- Each line is due within a minute, see LOOK_AGAIN in line.lua: these are late, as the clock was set back.
  local late = '(' .. string.format('%.0f', now + 60000000)
  names = redis.call('ZRANGEBYSCORE', KEYS[1], late, '+inf', 'LIMIT', 0, ARGV[2])
end
for _, name in ipairs(names) do
  redis.call('ZADD', KEYS[1], string.format('%.0f', now + ARGV[1]), name)
end
local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
table.insert(names, 1, first[2] and math.max(0, tonumber(first[2]) - now) or -1)
return names
