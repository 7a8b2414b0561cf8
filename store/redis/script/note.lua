-- Notes that a record carries the id that a provider gave, for as long as the record is kept, and forgets records that
-- are not kept any more. The whole is kept for as long as the record that is kept for the longest time. It is part of
-- the scripts that store such an id: index is the key of the id's index, hash that of the record's ID, and kept until
-- when the record is kept, in milliseconds since 1970, or +inf. It returns the error if the server refuses.
local function note(index, hash, kept)
	local done = redis.pcall('ZREMRANGEBYSCORE', index, '-inf', '(' .. redis.call('TIME')[1] .. '000')
	if type(done) ~= 'table' then
		done = redis.pcall('ZADD', index, kept, hash)
	end
	if type(done) == 'table' then
		return done
	end
	local longest = redis.call('ZREVRANGE', index, 0, 0, 'WITHSCORES')[2]
	if longest == 'inf' then
		redis.call('PERSIST', index)
	else
		redis.call('PEXPIREAT', index, longest)
	end
end

