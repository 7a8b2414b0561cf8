-- Makes a record where there is none, or says what is there.
--
-- KEYS: the record, the index that it belongs to.
-- ARGV: the record as it would be had it been made at the time 0, its lease in microseconds.
-- Returns the server's time in microseconds if the record was made, else that time and what is stored.
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local due = now + ARGV[2]
local at = struct.pack('>I8', now)
local new = ARGV[1]
local old = redis.call('SET', KEYS[1],
	new:sub(1, 2) .. at .. new:sub(11, 26) .. struct.pack('>I8', due) .. new:sub(35, 64) .. at .. new:sub(73),
	'NX', 'GET')
if old then
	return {now, old}
end
redis.call('ZADD', KEYS[2], due, KEYS[1])
return now
