-- What is remembered only for repetitions goes by age. A look at some fields with every new one keeps up with what is added.
local function forget_some(grants, keep, most)
  local old, some = {}, redis.call('HRANDFIELD', grants, most, 'WITHVALUES') or {}
  for i = 1, #some, 2 do
    local kind = string.match(some[i], '^%a+')
    local at = num(string.match(some[i + 1], '^%d+'))
    if (kind == 'given' or kind == 'used') and at < now - num(keep) then old[#old + 1] = some[i] end
  end
  if #old > 0 then redis.call('HDEL', grants, unpack(old)) end
end
