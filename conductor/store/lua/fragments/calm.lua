-- Like a step's lease, that of a permit says nothing after a gap: holders had nobody to renew it with. The stall sweep looks at every partition;
-- while it has not looked again, and in the calm that follows, what has lapsed is still out.
local function calm_until()
  local seen = redis.call('HMGET', HEAD, 'look', 'calm')
  local looked, calm = num(seen[1]), num(seen[2])
  if looked > 0 and (now - looked > num(gap) or looked > now) then return now + 1000 end
  return calm
end
