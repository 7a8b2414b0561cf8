#!lua flags=allow-oom
-- Returns the server's time in microseconds. Unlike TIME, it is refused by a replica, which may not know what is stored.
local t = redis.call('TIME')
return t[1] * 1000000 + t[2]
