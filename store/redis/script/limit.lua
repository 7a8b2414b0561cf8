#!lua
-- Takes a portion of what a scope may use, under the limit of a rate, of a number of active keys, or both.
--
-- KEYS: a hash of what is used ('u', as of the time 't'), how many active keys are counted out at which time, and the
--       last take of each taker ('n' and the name: its number, how many it was granted, their end, and when).
-- ARGV: the limit of the rate (0 for none) and its window in microseconds, the limit of active keys (0 for none), how
--       long one is kept and how long the parts are at whose ends they are counted out, in microseconds, how many are
--       needed, how many are wanted, the divisor for the latter, how many come back unused, from which end (0 for the
--       last, -1 for the first), how many more active keys come back from there, the name of the taker (empty for
--       none), the number of the take, and for how long takes are remembered, in microseconds.
-- Returns how many are granted, the end that active keys are counted out at, whether it is the limit of active keys that
-- stands in the way, and in how many microseconds there is one more.
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local limit, window, most, kept, part, need, want, share, unused, from, undone, taker, number, memory = unpack(ARGV)
limit, window, most, need = tonumber(limit), tonumber(window), tonumber(most), tonumber(need)
unused, undone = tonumber(unused), tonumber(undone)
local none = 3600000000

local mine, last = taker ~= '' and 'n' .. taker, nil
local used, at, ends, active = 0, now, {}, 0
local stored = redis.call('HGETALL', KEYS[1])
for i = 1, #stored, 2 do
	local name, n = stored[i], tonumber(stored[i + 1])
	if name == 'u' then
		used = n
	elseif name == 't' then
		at = n
	elseif name == mine then
		last = {string.match(stored[i + 1], '(%d+) (%d+) (%d+)')}
	elseif string.sub(name, 1, 1) == 'n' then
		if now - tonumber(string.match(stored[i + 1], '%d+$')) > tonumber(memory) then
			redis.call('HDEL', KEYS[1], name)
		end
	elseif tonumber(name) > now and n > 0 then
		ends[#ends + 1] = {tonumber(name), n, name}
		active = active + n
	else
		redis.call('HDEL', KEYS[1], name)
	end
end

-- A take that comes again, because its reply was lost, gets what it was granted. One that is late changes nothing.
if last and tonumber(number) < tonumber(last[1]) then
	return {0, 0, 0, 0}
elseif last and number == last[1] then
	if tonumber(last[2]) > 0 then
		return {tonumber(last[2]), tonumber(last[3]), 0, 0}
	end
	unused, undone = 0, 0
end

-- What comes back. A clock that went back gives nothing away.
if limit > 0 then
	used = math.max(0, used - math.max(0, now - at) * limit / window - unused)
end
local free = unused + undone
table.sort(ends, function(a, b)
	if a[3] == from or b[3] == from then
		return a[3] == from and b[3] ~= from
	end
	if from == '-1' then
		return a[1] < b[1]
	end
	return a[1] > b[1]
end)
for i = 1, #ends do
	local n = math.min(free, ends[i][2])
	if most ~= 0 and n > 0 then
		redis.call('HINCRBY', KEYS[1], ends[i][3], -n)
		ends[i][2], active, free = ends[i][2] - n, active - n, free - n
	end
end

-- What is left.
local left, wait, byActive = math.huge, 0, 0
if limit ~= 0 then
	left = math.max(0, math.floor(limit - used + 0.000001))
	wait = limit > 0 and (used + 1 - limit) * window / limit or none
end
if most ~= 0 and most - active < left then
	left, byActive, wait = math.max(0, most - active), 1, none
	local first
	for i = 1, #ends do
		if ends[i][2] > 0 then
			first = math.min(first or ends[i][1], ends[i][1])
		end
	end
	if most > 0 and first then
		wait = first - now
	end
end
local granted = math.min(left, math.max(need, math.min(want, math.floor(left / share))))

local ending, idle = 0, now
for i = 1, #ends do
	idle = math.max(idle, ends[i][1])
end
if most ~= 0 and granted > 0 then
	ending = math.ceil((now + kept) / part) * part
	idle = math.max(idle, ending)
	redis.call('HINCRBY', KEYS[1], string.format('%.0f', ending), granted)
end
if limit > 0 then
	used = used + granted
	idle = math.max(idle, now + used * window / limit)
	redis.call('HSET', KEYS[1], 'u', string.format('%.6f', used), 't', string.format('%.0f', now))
end
if mine then
	idle = math.max(idle, now + memory)
	redis.call('HSET', KEYS[1], mine, string.format('%s %d %.0f %.0f', number, granted, ending, now))
end
redis.call('PEXPIRE', KEYS[1], math.ceil((idle - now) / 1000) + 1000)
return {granted, ending, byActive, math.ceil(math.max(0, wait))}
