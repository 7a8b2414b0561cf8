#!lua
-- Makes and settles any number of records, each by itself, at one moment of the server's clock.
--
-- KEYS: the index of what is in progress, the records; behind one that is identified, the index of its provider's id.
-- ARGV, for each record:
--   make, the lease in microseconds, the random part of the token, what is stored from the nonce on: makes the record if
--     there is none.
--   complete or release, the smallest retention in microseconds, the attempt in eight bytes, the tail: settles the record
--     if it is in progress at that attempt, and if that takes no more than to add a tail.
--   identify, and what follows complete: completes it with a tail that has a provider's id, which is noted.
-- Returns the time in microseconds, and for each 1 if it was made, or when it expires if it was settled, or else what is
-- stored, or an error.
local call, pack = redis.pcall, struct.pack
local t = call('TIME')
local now = t[1] * 1000000 + t[2]
local lease, due, begin           -- of the last record that was made: most leases are equal,
local retention, expires, removal -- and most retentions
local opened, closed = {}, {}     -- entries of the index
local reply = {now}
local a, k = 1, 2

while KEYS[k] do
	local key, op, number, first, rest = KEYS[k], ARGV[a], ARGV[a + 1], ARGV[a + 2], ARGV[a + 3]
	local result, provider
	a, k = a + 4, k + 1
	if op == 'identify' then
		op, provider = 'complete', KEYS[k]
		k = k + 1
	end
	if op == 'make' then
		if number ~= lease then
			lease = number
			begin = pack('>I8I8I8I8', 0, 0, now + lease, now)
			due = string.format('%.0f', now + lease)
		end
		result = call('SETNX', key, '\2\1' .. pack('>I8', now + first) .. begin .. rest)
		if result == 1 then
			opened[#opened + 1] = due
			opened[#opened + 1] = key
		elseif result == 0 then
			result = call('GET', key)
		end
	else
		local old = call('GET', key)
		result = old
		if type(old) == 'string' and #old > 72 and old:find(first, 3, true) == 3 then
			local format, state = old:byte(1, 2)
			local flags = old:byte(67)
			local awaited = flags >= 32
			if awaited then
				flags = flags - 32
			end
			-- A tail may have to be kept, and a release may drop data.
			if format == 2 and state == 1 and (flags < 8 or flags < 24 and flags >= 16 and op == 'complete') then
				local keep = struct.unpack('>I8', old, 59)
				local kept
				if awaited or tonumber(number) > keep then
					keep = math.max(keep, number)
					kept = old:sub(27, 58) .. pack('>I8', keep) .. string.char(flags) .. old:sub(68)
				else
					kept = old:sub(27)
				end
				if keep ~= retention then
					retention = keep
					expires = pack('>I8I8', now, now + keep)
					removal = string.format('%.0f', math.ceil((now + keep) / 1000) + 60000)
				end
				local settled = (op == 'complete' and '\2\2' or '\2\3') .. first .. expires .. kept .. rest
				result = provider and note(provider, key:sub(-16), removal) or call('SET', key, settled, 'PXAT', removal)
				if not result.err then
					result = now + keep
					closed[#closed + 1] = key
					if awaited then
						call('SPUBLISH', key, '')
					end
				end
			end
		end
	end
	reply[#reply + 1] = result
end

if #opened > 0 then
	local added = call('ZADD', KEYS[1], unpack(opened))
	if type(added) == 'table' then -- no record is without its entry
		for i = 2, #opened, 2 do
			call('DEL', opened[i])
		end
		for i = 2, #reply do
			if reply[i] == 1 then
				reply[i] = added
			end
		end
	end
end
if #closed > 0 then
	call('ZREM', KEYS[1], unpack(closed)) -- an entry too many does no harm
end
return reply
