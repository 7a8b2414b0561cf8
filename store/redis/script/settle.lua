-- Settles a record that is in progress at an attempt, and of which a settlement only replaces the head and adds the tail.
--
-- KEYS: the record, the index of what is swept, the index of what is resumed.
-- ARGV: format, state and attempt as they must be and as they will be, the tail, the smallest retention in microseconds,
--       the flags that another way of settling is needed for, the grace in milliseconds.
-- Returns when the record expires, else the server's time and what is stored.
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local old = redis.call('GET', KEYS[1])
if not old or #old < 73 or old:sub(1, 10) ~= ARGV[1] or bit.band(old:byte(59), ARGV[5]) ~= 0 then
	return {now, old}
end
local flags = old:byte(59)
local retention = math.max(struct.unpack('>I8', old, 51), ARGV[4])
local awaited = flags >= 32
if awaited then
	flags = flags - 32
end
if ARGV[3] ~= '' then
	flags = flags + 8
end
redis.call('SET', KEYS[1], ARGV[2] .. ('\0'):rep(24) .. struct.pack('>I8I8I8', now, now + retention, retention)
	.. string.char(flags) .. old:sub(60) .. ARGV[3], 'PX', math.ceil(retention / 1000) + ARGV[6])
redis.call('ZREM', KEYS[2 + old:byte(60)], KEYS[1])
if awaited then
	redis.call('SPUBLISH', KEYS[1], '')
end
return now + retention
