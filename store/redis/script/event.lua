#!lua
-- Keeps an external event, unless it is there already.
--
-- KEYS: the event, the index of when events were received.
-- ARGV: the event.
-- Returns 1 if it was kept, else 0.
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
if redis.call('EXISTS', KEYS[1]) == 1 then
	return 0
end
redis.call('ZADD', KEYS[2], now, KEYS[1]) -- first, so that no event is without its entry
redis.call('SET', KEYS[1], struct.pack('>I8', now) .. ARGV[1])
return 1
