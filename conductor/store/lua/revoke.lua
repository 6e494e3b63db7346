-- revoke: a session takes back what it granted for one capability, or for all of them; also from ops that have used a grant before.
--! args: session capability
--! use: partition
--! result: OK
local GRANTS = P .. 'grants:' .. session
local doomed = {}
for _, field in ipairs(redis.call('HKEYS', GRANTS)) do
  local kind, name = string.match(field, '^(%a+):([^:]+)')
  -- Grant ids stay known: a grant whose reply was lost must not come back after this.
  if kind ~= 'given' and (capability == NIL or name == capability) then doomed[#doomed + 1] = field end
end
for at = 1, #doomed, 1000 do redis.call('HDEL', GRANTS, unpack(doomed, at, math.min(at + 999, #doomed))) end
return {'OK'}
