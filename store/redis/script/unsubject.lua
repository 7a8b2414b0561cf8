#!lua flags=allow-oom
-- Removes an event from the index of a subject, unless it was noted again since the index was read.
--
-- KEYS: the index of the subject.
-- ARGV: the key of the event, what was noted.
if redis.call('ZSCORE', KEYS[1], ARGV[1]) ~= ARGV[2] then
	return 0
end
return redis.call('ZREM', KEYS[1], ARGV[1])
