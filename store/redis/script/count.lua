#!lua flags=allow-oom,allow-cross-slot-keys
-- Makes one step of a scan, and counts the records that it meets by their state: what a count needs of them does not
-- leave the server.
--
-- ARGV: the cursor, the pattern of the names, how many keys to look at.
-- Returns the next cursor, how many records are in each state from 0 on, and the names of those that have to be looked
-- at: they are unknown, of another format, or not to be read here, as while their slot moves.
local pcall = redis.pcall
local step = redis.call('SCAN', ARGV[1], 'MATCH', ARGV[2], 'COUNT', ARGV[3])
local counts, others = {0, 0, 0, 0, 0, 0}, {}
for _, key in ipairs(step[2]) do
	local head = pcall('GETRANGE', key, '0', '1')
	local format, state
	if type(head) == 'string' then
		format, state = head:byte(1, 2)
	end
	if format == 2 and state and state ~= 4 and counts[state + 1] then
		counts[state + 1] = counts[state + 1] + 1
	elseif head ~= '' then
		others[#others + 1] = key
	end
end
return {step[1], counts, others}
