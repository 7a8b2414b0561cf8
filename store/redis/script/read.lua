#!lua flags=allow-oom
-- Reads a record, and the server's time in microseconds.
--
-- KEYS: the record.
local t = redis.call('TIME')
return {t[1] * 1000000 + t[2], redis.call('GET', KEYS[1])}
