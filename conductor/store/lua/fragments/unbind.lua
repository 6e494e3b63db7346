-- Operations whose run has ended, or has opened a new generation, end with it. `called` remembers them for whoever erases the run.
local function unbind(id)
  local list = P .. 'run:' .. id .. ':ops'
  local members = redis.call('SPOP', list, 100)
  if #members > 0 then redis.call('SADD', P .. 'run:' .. id .. ':called', unpack(members)) end
  for _, member in ipairs(members) do
    local op = run_of(member)
    if op and unbound(op) then end_unbound(op)
    elseif op and not ended(op) then redis.call('SADD', list, member) end
  end
  if #members == 100 then redis.call('ZADD', P .. 'due', int(now + 1), 'unbound:' .. id) end
end
