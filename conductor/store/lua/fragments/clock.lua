-- now: Redis TIME, never behind what this partition has seen by up to 5 s; a greater step back is accepted, noted, and told by the sweep.
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local head = redis.call('HMGET', HEAD, 'clock', 'fence')
local seen, fence = num(head[1]), num(head[2])
local stepped_back = false
if now < seen then
  if seen - now <= 5000 then now = seen else stepped_back = true end
end

-- A fence only grows, and never falls behind the clock, so that none is given twice even after a rollback of the server.
local function next_fence()
  fence = math.max(fence + 1, now)
  return fence
end
local function keep_clock()
  put(HEAD, 'clock', int(now))
  put(HEAD, 'fence', int(fence))
  if stepped_back then put(HEAD, 'stepped', int(now)) end
end
