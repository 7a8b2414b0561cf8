#!lua flags=allow-oom
-- Removes from an index a record that does not belong into it: an entry too many, as a record that was removed by hand
-- leaves it.
--
-- KEYS: the record, the index.
-- ARGV: the format, and the state of what belongs there.
-- Returns 1 if the entry was removed.
local head = redis.call('GETRANGE', KEYS[1], 0, 1)
if head == ARGV[1] or head ~= '' and head:sub(1, 1) ~= ARGV[1]:sub(1, 1) then
	return 0 -- it belongs there, or this program cannot tell
end
return redis.call('ZREM', KEYS[2], KEYS[1])
