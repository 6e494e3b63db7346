-- deliver: one message into a session's inbox, once per message id: a relay that died half-way repeats the call, never the message.
--! args: session message_id kind operation_id body most keep
--! use: partition clock
--! result: OK | KNOWN, then the place in the stream
local INBOX = P .. 'inbox:' .. session
local IDS = INBOX .. ':ids'
local known = redis.call('ZSCORE', IDS, message_id)
if known then return {'KNOWN', int(tonumber(known)) .. '-0'} end

-- A place only grows and is given once: no reader's cursor jumps over a message when the clock steps back or a burst fills a millisecond.
local last = redis.call('ZREVRANGE', IDS, 0, 0, 'WITHSCORES')
local place = int(math.max(num(last[2]) + 1, now))
local oldest = int(now - num(keep))

redis.call('XADD', INBOX, 'MAXLEN', '~', most, place .. '-0', 'm', message_id, 'k', kind, 'o', operation_id, 't', int(now), 'b', body)
-- Message and id are forgotten at the same age, so that whatever stands in the stream can be acknowledged by its id.
redis.call('XTRIM', INBOX, 'MINID', oldest)
redis.call('ZREMRANGEBYSCORE', IDS, '-inf', '(' .. oldest)
redis.call('ZADD', IDS, place, message_id)
redis.call('PEXPIRE', INBOX, keep)
redis.call('PEXPIRE', IDS, keep)
return {'OK', place .. '-0'}
