#!lua flags=allow-oom
-- Notes that a record carries the id that a provider gave, for as long as the record is kept, and forgets records that are
-- not kept any more. The whole is kept for as long as the record that is kept for the longest time.
--
-- KEYS: the index of the provider's id.
-- ARGV: the hash of the record's ID, until when it is kept in milliseconds since 1970 or +inf.
local t = redis.call('TIME')
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. t[1] .. '000')
redis.call('ZADD', KEYS[1], ARGV[2], ARGV[1])
local longest = redis.call('ZREVRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2]
if longest == 'inf' then
	redis.call('PERSIST', KEYS[1])
else
	redis.call('PEXPIREAT', KEYS[1], longest)
end
return 1
