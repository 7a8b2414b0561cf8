#!lua flags=allow-oom
-- Marks a record that is in progress at an attempt as awaited, so that the call that ends the attempt publishes it.
--
-- KEYS: the record.
-- ARGV: format, state and attempt as they must be.
-- Returns 1 if the attempt is in progress, else 0.
if redis.call('GETRANGE', KEYS[1], 0, 9) ~= ARGV[1] then
	return 0
end
local flags = redis.call('GETRANGE', KEYS[1], 66, 66):byte()
if flags < 32 then
	redis.call('SETRANGE', KEYS[1], 66, string.char(flags + 32))
end
return 1
