-- A capability may have so many retries a minute, this partition its share of them; what is over waits for the next minute and says so.
local spent, minute = {}, math.floor(now / 60000)
local function over_budget(d)
  if d.budget == 0 then return false end
  local key, share = P .. 'budget:' .. d.capability, math.ceil(d.budget / num(partitions))
  if not spent[key] then
    local was = redis.call('HMGET', key, 'minute', 'used')
    spent[key] = num(was[1]) == minute and num(was[2]) or 0
  end
  if spent[key] >= share then return true end
  spent[key] = spent[key] + 1
  put(key, 'minute', int(minute)); put(key, 'used', int(spent[key]))
  return false
end
local function postpone(run, index, item)
  run.next_at = (minute + 1) * 60000
  redis.call('ZADD', P .. 'due', int(run.next_at), 'retry:' .. ref(run, index, item))
  if is_op(run) then
    set(run, 'wy', 'retry_budget')
    redis.call('ZADD', P .. 'queued:' .. run.qr, int(run.next_at), run.id)
  end
end
