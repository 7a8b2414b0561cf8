-- Notes that a record carries the id that a provider gave, for as long as the record is kept, and forgets records that
-- are not kept any more. The whole is kept for as long as the record that is kept for the longest time. It is part of
-- the scripts that store such an id: index is the key of the id's index, hash that of the record's ID, and kept until
-- when the record is kept, in milliseconds since 1970, or +inf. It returns the error if the server refuses a command:
-- none may end the script, which is about other records too.
local function note(index, hash, kept)
	local call = redis.pcall
	local done = call('ZREMRANGEBYSCORE', index, '-inf', '(' .. redis.call('TIME')[1] .. '000')
	if type(done) ~= 'table' then
		done = call('ZADD', index, kept, hash)
	end
	if type(done) ~= 'table' then
		local last = call('ZREVRANGE', index, 0, 0, 'WITHSCORES')
		if last.err then
			return last
		end
		done = last[2] == 'inf' and call('PERSIST', index) or call('PEXPIREAT', index, last[2])
	end
	if type(done) == 'table' then
		return done
	end
end

