-- grant: a session lets a capability run: `once` (one use more), `until` (for `length` ms from now) or `always`. A grant id counts once.
--! args: session capability mode grant_id length by most keep
--! use: partition clock forgetting
--! result: OK | KNOWN | FULL
-- Fields: `grant:<capability>` (until;at;by, 0 = always), `once:<capability>` (a line id;at;by for each use left, oldest first),
-- `used:<capability>:<op>` (at;id;at;by) and `given:<capability>:<id>` (at). A capability's name comes without colon, so what follows it
-- is the rest of the field, whatever an op or a grant is called.
local GRANTS = P .. 'grants:' .. session
local GIVEN = 'given:' .. capability .. ':' .. grant_id
if redis.call('HEXISTS', GRANTS, GIVEN) == 1 then return {'KNOWN'} end

local stamp = int(now) .. ';' .. by
if mode == 'once' then
  local left = redis.call('HGET', GRANTS, 'once:' .. capability) or NIL
  local _, uses = string.gsub(left, '\n', '\n')
  if uses >= num(most) then return {'FULL'} end
  put(GRANTS, 'once:' .. capability, left .. grant_id .. ';' .. stamp .. '\n')
else
  put(GRANTS, 'grant:' .. capability, (mode == 'always' and '0' or int(now + num(length))) .. ';' .. stamp)
end
put(GRANTS, GIVEN, int(now))

forget_some(GRANTS, keep, 20)
write_all()
return {'OK'}
