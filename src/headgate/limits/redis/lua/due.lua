-- Which lines have to be looked at now, each told to one who asks: who was told and does nothing is overtaken later.
--
-- KEYS[1]  of all lines: when each has to be looked at again, by the server's clock
-- ARGV     1 how long (microseconds) nobody else is told of a line, 2 the most
-- returns  {microseconds until the next has to be looked at, or -1, name, name ...}

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local names = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now), 'LIMIT', 0, ARGV[2])
for _, name in ipairs(names) do
  redis.call('ZADD', KEYS[1], string.format('%.0f', now + ARGV[1]), name)
end
local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
table.insert(names, 1, first[2] and math.max(0, tonumber(first[2]) - now) or -1)
return names
