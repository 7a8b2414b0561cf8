#!lua flags=allow-oom
-- Appends an entry to the audit of a record, at a moment later than the one before it.
--
-- KEYS: the audit, the index of audits.
-- ARGV: the entry.
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local last = redis.call('ZREVRANGE', KEYS[1], 0, 0, 'WITHSCORES')
if last[2] then
	now = math.max(now, last[2] + 1)
end
redis.call('ZADD', KEYS[2], 'NX', now, KEYS[1]) -- first, so that no audit is without its entry
redis.call('ZADD', KEYS[1], now, struct.pack('>I8', now) .. ARGV[1])
return 1
