#!lua flags=allow-oom
-- Makes the lease of a record that is in progress at an attempt last longer.
--
-- KEYS: the record, the index of what is in progress.
-- ARGV: format, state and attempt as they must be, the lease in microseconds.
-- Returns the server's time, and beside it what is stored if the record is not as it must be.
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
if redis.call('GETRANGE', KEYS[1], 0, 9) ~= ARGV[1] then
	return {now, redis.call('GET', KEYS[1])}
end
local due = now + ARGV[2]
redis.call('ZADD', KEYS[2], due, KEYS[1])
redis.call('SETRANGE', KEYS[1], 26, struct.pack('>I8', due))
return now
