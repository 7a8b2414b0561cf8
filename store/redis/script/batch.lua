#!lua
-- Makes and settles any number of records, each by itself, at one moment of the server's clock.
--
-- KEYS, two for each: the record, the index of what is in progress.
-- ARGV, four for each:
--   make, the lease in microseconds, what is stored from the nonce up to when the record was made, what is stored behind
--     that: makes the record if there is none.
--   complete or release, the smallest retention in microseconds, the attempt in eight bytes, the tail: settles the record
--     if it is in progress at that attempt, and if that takes no more than to add a tail.
-- Returns the time in microseconds, and for each 1 if it was made, or when it expires if it was settled, or else what is
-- stored, or an error.
local call, pack, unpack = redis.pcall, struct.pack, struct.unpack
local t = call('TIME')
local now = t[1] * 1000000 + t[2]
local made = pack('>I8', now)
local nobody = ('\0'):rep(24)
local lease, due, begin      -- of the last record that was made: most leases are equal,
local retention, expires, px -- and most retentions
local reply = {now}
local n, a = 1, 1

for i = 1, #KEYS, 2 do
	local key, op, number, first, rest = KEYS[i], ARGV[a], ARGV[a + 1], ARGV[a + 2], ARGV[a + 3]
	local result
	if op == 'make' then
		if number ~= lease then
			lease = number
			begin = '\1\1' .. made .. pack('>I8', now + lease)
			due = string.format('%.0f', now + lease)
		end
		result = call('SET', key, begin .. first .. made .. rest, 'NX', 'GET')
		if not result then
			result = 1
			local added = call('ZADD', KEYS[i + 1], due, key)
			if type(added) == 'table' then -- no record is without its entry
				call('DEL', key)
				result = added
			end
		end
	else
		local old = call('GET', key)
		result = old
		if type(old) == 'string' and #old > 72 and old:find(first, 3, true) == 3 then
			local format, state = old:byte(1, 2)
			local flags = old:byte(59)
			local awaited = flags >= 32
			if awaited then
				flags = flags - 32
			end
			-- A tail may have to be kept, and a release may drop data.
			if format == 1 and state == 1 and (flags < 8 or flags < 24 and flags >= 16 and op == 'complete') then
				local keep = unpack('>I8', old, 51)
				local kept
				if awaited or tonumber(number) > keep then
					keep = math.max(keep, number)
					kept = pack('>I8', keep) .. string.char(flags) .. old:sub(60)
				else
					kept = old:sub(51)
				end
				if keep ~= retention then
					retention = keep
					expires = nobody .. pack('>I8I8', now, now + keep)
					px = string.format('%.0f', math.ceil(keep / 1000) + 60000)
				end
				result = call('SET', key, (op == 'complete' and '\1\2' or '\1\3') .. first .. expires .. kept .. rest,
					'PX', px)
				if not result.err then
					result = now + keep
					call('ZREM', KEYS[i + 1], key) -- an entry too many does no harm
					if awaited then
						call('SPUBLISH', key, '')
					end
				end
			end
		end
	end
	n, a = n + 1, a + 4
	reply[n] = result
end
return reply
