-- acknowledge: one message leaves the inbox. Its id stays known, so that a late repetition of its delivery is not shown again.
--! args: session message_id
--! use: partition
--! result: OK | UNKNOWN
local INBOX = P .. 'inbox:' .. session
local place = redis.call('ZSCORE', INBOX .. ':ids', message_id)
if not place then return {'UNKNOWN'} end
redis.call('XDEL', INBOX, int(tonumber(place)) .. '-0')
return {'OK'}
