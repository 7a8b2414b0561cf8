#!lua flags=allow-oom
-- Keeps a completion that came too late.
--
-- KEYS: the list of the record.
-- ARGV: the completion, how long the list is kept from now on, in milliseconds.
redis.call('RPUSH', KEYS[1], ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
