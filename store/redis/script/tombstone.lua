#!lua
-- Drops what a front holds, and leaves a tombstone, which is an empty value, unless there is one that ends later.
--
-- KEYS: the entry.
-- ARGV: for how many milliseconds.
if redis.call('STRLEN', KEYS[1]) > 0 or redis.call('PTTL', KEYS[1]) < tonumber(ARGV[1]) then
	redis.call('SET', KEYS[1], '', 'PX', ARGV[1])
end
return 1
