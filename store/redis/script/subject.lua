#!lua
-- Notes that an event is about a subject, at a moment later than the one that was noted before.
--
-- KEYS: the index of the subject.
-- ARGV: the key of the event.
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local before = redis.call('ZSCORE', KEYS[1], ARGV[1])
if before then
	now = math.max(now, before + 1)
end
redis.call('ZADD', KEYS[1], now, ARGV[1])
return 1
