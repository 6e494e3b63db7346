-- expire_leases: running → ready where the lease ended. Only this takes a lease away; it makes the holder's fence worthless.
-- After a gap of more than 5 s since the last look (server or sweeps were away) it waits one lease, so that slow is not taken for dead.
--! args: caller number limit dry poison interval
--! use: partition clock token run save step each waiters ready lane bound undo close
--! result: OK now pokes looked lost…
if told then return told end
local LEASES = P .. 'leases'
local looks = redis.call('HMGET', HEAD, 'look', 'calm', 'stepped')
local calm = num(looks[2])
if dry == '0' then
  -- A look or a calm that lies ahead is from before the clock stepped back.
  local ahead = num(looks[1]) > now or calm > now + 15000 or stepped_back
  if ahead or now - num(looks[1]) > math.max(5000, 2 * num(interval)) then calm = now + 15000; put(HEAD, 'calm', int(calm)) end
  put(HEAD, 'look', int(now))
end

-- After the clock stepped back, leases that end later than now + their length are shortened to it.
if looks[3] and dry == '0' then
  local far = redis.call('ZREVRANGEBYSCORE', LEASES, '+inf', int(now + 15001), 'LIMIT', 0, limit)
  for _, member in ipairs(far) do
    local id, index = parse_ref(member)
    local run = run_of(id)
    if run then redis.call('ZADD', LEASES, 'LT', int(now + descriptor(run, index).lease), member)
    else redis.call('ZREM', LEASES, member) end
  end
  if #far < tonumber(limit) then redis.call('HDEL', HEAD, 'stepped') end
end

-- A loss counts towards poison if the step was alone in its claim and its code had begun, and Redis was not away: `g` says that a repeated
-- step had begun; of a first claim nobody knows, and it counts.
local function lose(run, index, item, rec, ended_at)
  local begun = has(rec.flags, 'g') or not has(rec.flags, '1')
  if begun and not has(rec.flags, 'b') and ended_at > calm - 15000 then  -- not while the gap lasted that the calm follows
    local first = num(string.match(rec.flags, 'w(%d+)'))
    if first == 0 or now - first > 86400000 then
      rec.losses = 0
      rec.flags = string.gsub(rec.flags, 'w%d+', '') .. 'w' .. int(now)
    end
    rec.losses = rec.losses + 1
    if rec.losses >= tonumber(poison) then set_flag(rec, '!', true) end
  end
  set_flag(rec, 'b', false)
  set_flag(rec, 'g', false)
  set_flag(rec, '1', true)
  set_flag(rec, 'd', true)
  rec.attempt = rec.attempt - 1
  emit(run, 'x', index, int(rec.fence), item, 'lease_expired')
  add(run, 'a', -1)
  if in_each(run, index, item) then bump(each_of(run, index), 'active', -1) end
  put_back(run, index, item, rec)
end

local lost, found = {}, {}
if now >= calm then
  found = redis.call('ZRANGEBYSCORE', LEASES, '-inf', int(now), 'WITHSCORES', 'LIMIT', 0, limit)
  for i = 1, #found, 2 do
    local member, ended_at = found[i], tonumber(found[i + 1])
    local id, index, item = parse_ref(member)
    local run = run_of(id)
    local rec = run and not ended(run) and record(run, index, item)
    local real = rec and rec.state == RUNNING and not closed(run, index, item) and not out_of_play(run, descriptor(run, index))
    if real then lost[#lost + 1] = member .. ' lease_expired' end
    if dry == '0' then
      redis.call('ZREM', LEASES, member)
      if real then lose(run, index, item, rec, ended_at) end
    end
  end
end
for _, run in ipairs(met) do settle(run, 'step_failed') end
save_ready()
save_runs()
keep_clock()
write_all()
return tell({'OK', int(now), table.concat(pokes, ','), int(#found / 2), unpack(lost)})
