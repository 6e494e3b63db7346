-- A scope that is claimed again: what was met meanwhile stands ready again, a thousand entries at a time; the rest is due at once, so that
-- the due sweep goes on where a caller that died left off.
local function release(scope)
  local list = P .. 'held:' .. (string.match(scope, '^workflow:(.*)$') or string.match(scope, '^capability:.*$') or NIL)
  local entries = redis.call('ZPOPMIN', list, 1000)
  for i = 1, #entries, 2 do
    local queue, member = string.match(entries[i], '^(.-)\n(.*)$')
    fresh[#fresh + 1] = {queue = queue, member = member, score = tonumber(entries[i + 1])}
  end
  if #entries == 2000 then redis.call('ZADD', P .. 'due', int(now), 'unhold:' .. scope) end
  return #entries / 2
end
