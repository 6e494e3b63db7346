-- repoke: what is ready and unclaimed past its grace is poked again, with a growing pause while nobody answers.
--! args: caller number grace
--! use: partition clock token run save step each waiters ready
--! result: OK now pokes queues…
if told then return told end
local late = {}
local markers = redis.call('HGETALL', P .. 'pokes')
for i = 1, #markers, 2 do
  local queue, marker = markers[i], num(markers[i + 1])
  -- What has asked its limit long ago asks again: a net below the home of the limit, which keeps its place there.
  if string.find(queue, '!', 1, true) then
    for _, member in ipairs(redis.call('ZRANGEBYSCORE', P .. 'limited:' .. queue, '-inf', int(now - 120000), 'LIMIT', 0, 100)) do
      redis.call('ZREM', P .. 'limited:' .. queue, member)
      redis.call('ZADD', P .. 'ready:' .. queue, int(5e13 + now - num(grace)), member)
    end
  end
  local first = redis.call('ZRANGE', P .. 'ready:' .. queue, 0, 0, 'WITHSCORES')
  local age = first[1] and now - math.fmod(tonumber(first[2]), 1e13)
  if age and (age >= num(grace) or age < 0) then
    local at, pause = string.match(redis.call('HGET', P .. 'repokes', queue) or '0;0', '^(%d+);(%d+)$')
    pause = marker == 0 and 0 or tonumber(pause)
    if now - tonumber(at) >= pause or tonumber(at) > now then
      put(P .. 'pokes', queue, int(now))
      put(P .. 'repokes', queue, int(now) .. ';' .. int(math.min(60000, math.max(num(grace), pause * 2))))
      pokes[#pokes + 1] = queue
      late[#late + 1] = queue .. ' unclaimed'
    end
  end
end
keep_clock()
write_all()
return tell({'OK', int(now), table.concat(pokes, ','), unpack(late)})
