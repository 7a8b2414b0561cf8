-- Removes from an index a record that does not belong into it: an entry too many, as a record that was removed by hand
-- leaves it.
--
-- KEYS: the record, the index.
-- ARGV: how a record begins that belongs there, the policy on a lost owner that it must have, or nothing for any.
-- Returns 1 if it was removed.
local head = redis.call('GETRANGE', KEYS[1], 0, 59)
if head:sub(1, 1) ~= ARGV[1]:sub(1, 1) and head ~= '' then
	return 0
end
if head:sub(1, 2) == ARGV[1] and (ARGV[2] == '' or head:sub(60, 60) == ARGV[2]) then
	return 0
end
return redis.call('ZREM', KEYS[2], KEYS[1])
