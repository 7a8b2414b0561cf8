#!lua flags=allow-oom
-- Removes the oldest entries of an audit that were written before a moment.
--
-- KEYS: the audit, the index of audits.
-- ARGV: the moment, how many entries at most.
-- Returns how many were removed.
local old = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(' .. ARGV[1], 'LIMIT', 0, ARGV[2])
for _, entry in ipairs(old) do
	redis.call('ZREM', KEYS[1], entry)
end
local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
if first[2] then
	redis.call('ZADD', KEYS[2], first[2], KEYS[1])
else
	redis.call('ZREM', KEYS[2], KEYS[1])
end
return #old
