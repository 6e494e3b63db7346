-- use_grant: may this op run the capability for the session? A once-grant is consumed under the op id, and one for a time is noted under it, so
-- that replays of the op pass, also when that time is over.
--! args: session capability op_id keep
--! use: partition clock forgetting
--! result: OK | REQUIRED
local GRANTS = P .. 'grants:' .. session
local STANDING, ONCE, USED = 'grant:' .. capability, 'once:' .. capability, 'used:' .. capability .. ':' .. op_id
local found = redis.call('HMGET', GRANTS, STANDING, ONCE, USED)
if found[3] then return {'OK'} end
local till = found[1] and tonumber(string.match(found[1], '^%d+'))
if till == 0 then return {'OK'} end
if till and till > now then
  redis.call('HSET', GRANTS, USED, int(now) .. ';;' .. int(now) .. ';')
  forget_some(GRANTS, keep, 5)
  return {'OK'}
end
local first, rest = string.match(found[2] or NIL, '^(.-)\n(.*)$')

if till then redis.call('HDEL', GRANTS, STANDING) end
if not first then return {'REQUIRED'} end
redis.call('HSET', GRANTS, USED, int(now) .. ';' .. first)
if rest == NIL then redis.call('HDEL', GRANTS, ONCE) else redis.call('HSET', GRANTS, ONCE, rest) end
return {'OK'}
