#!lua flags=allow-oom
-- Stores the next value of a record if it is still as it was read: a compare-and-set for what the program decided.
--
-- KEYS: the record, the index of what is in progress, the index of what is unknown; that of the provider's id, if the
--       next value carries one that is noted here.
-- ARGV: the head as it was read, empty if there was no record; until when what was read counts; the next value; its time
--       to live in milliseconds or 0 for ever; the number of the index that it was in, and of the one that it will be in,
--       each 0 for none; when it is due there; 1 if a waiting process is to be told; for the provider's id, until
--       when the record is kept.
-- Returns 1, else the server's time and what is stored. What was read too long ago is decided again, because its times
-- count from then.
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
if redis.call('GETRANGE', KEYS[1], 0, 71) ~= ARGV[1] or now > tonumber(ARGV[2]) then
	return {now, redis.call('GET', KEYS[1])}
end
local refused = KEYS[4] and note(KEYS[4], KEYS[1]:sub(-16), ARGV[9]) -- first, so that no record is without its entry
if refused then
	return refused
end
if ARGV[6] ~= '0' then
	redis.call('ZADD', KEYS[1 + ARGV[6]], ARGV[7], KEYS[1])
end
if ARGV[4] == '0' then
	redis.call('SET', KEYS[1], ARGV[3])
else
	redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[4])
end
if ARGV[5] ~= '0' and ARGV[5] ~= ARGV[6] then
	redis.call('ZREM', KEYS[1 + ARGV[5]], KEYS[1])
end
if ARGV[8] == '1' then
	redis.call('SPUBLISH', KEYS[1], '')
end
return 1
