#!lua flags=allow-oom
-- Removes an external event that was received before a moment.
--
-- KEYS: the event, the index of when events were received.
-- ARGV: the moment.
-- Returns 1 if it was removed, else 0.
local received = redis.call('ZSCORE', KEYS[2], KEYS[1])
if not received or tonumber(received) >= tonumber(ARGV[1]) then
	return 0
end
local removed = redis.call('DEL', KEYS[1])
redis.call('ZREM', KEYS[2], KEYS[1]) -- last, so that no event is without its entry
return removed
