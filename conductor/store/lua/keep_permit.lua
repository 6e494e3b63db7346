-- keep_permit: in the home of a limit: its holder is alive, so its lease goes on. One that was taken back stays so (LOST).
--! args: name permit lease
--! use: partition clock
--! result: OK | LOST
local key = P .. 'limit:' .. name .. ':permits'
if not redis.call('ZSCORE', key, permit) then return {'LOST'} end
redis.call('ZADD', key, 'XX', int(now + num(lease)), permit)
return {'OK'}
