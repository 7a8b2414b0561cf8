#!lua flags=allow-oom,allow-cross-slot-keys
-- Makes one step of a scan, and counts the records that it meets by their state: what a count needs of them does not
-- leave the server.
--
-- ARGV: the cursor, the pattern of the names, how many keys to look at, the time in microseconds.
-- Returns the next cursor, how many records are in each state from 0 on, and the names of those that have to be looked
-- at: they are unknown, in progress at the end of their lease, of another format, or not to be read here, as while their
-- slot moves.
local pcall = redis.pcall
local step = redis.call('SCAN', ARGV[1], 'MATCH', ARGV[2], 'COUNT', ARGV[3])
local counts, others, now = {0, 0, 0, 0, 0, 0}, {}, tonumber(ARGV[4])
for _, key in ipairs(step[2]) do
	local head = pcall('GETRANGE', key, '0', '33')
	local format, state
	if type(head) == 'string' then
		format, state = head:byte(1, 2)
	end
	local open = state == 4 or state == 1 and (#head < 34 or struct.unpack('>i8', head, 27) <= now)
	if format == 2 and state and not open and counts[state + 1] then
		counts[state + 1] = counts[state + 1] + 1
	elseif head ~= '' then
		others[#others + 1] = key
	end
end
return {step[1], counts, others}
