-- A limit at home. `turns:<queue>`: key → round, only keys with something queued; `key:<queue>⏎<key>`: who wants a permit, in order;
-- `permits`: permit → ms its lease ends; `granted`: permit → what for; `spent`: slice of time → permits given; `back`: key → held back until.
local LIMIT = P .. 'limit:' .. name
local SLICES = 200

local function limit_terms()
  local t = redis.call('HMGET', LIMIT, 'rate', 'per', 'concurrency')
  return {rate = tonumber(t[1] or NIL), per = num(t[2]), concurrency = tonumber(t[3] or NIL), known = t[1] or t[3]}
end
local function slice_of(terms) return math.floor(now / math.max(1, terms.per / SLICES)) end
local function line_of_key(queue, key) return LIMIT .. ':key:' .. queue .. '\n' .. key end

-- Also what a permit is out for: an each stands anew as soon as an item of it was taken, and a step anew when its lease was lost. A wish that was
-- told twice costs a permit that finds nothing and is given back unspent.
local function enqueue(queue, member, score, key)
  redis.call('ZADD', line_of_key(queue, key), 'NX', score, member)
  redis.call('SADD', LIMIT .. ':queues', queue)
  if redis.call('ZSCORE', LIMIT .. ':aside:' .. queue, key) then return end
  redis.call('ZADD', LIMIT .. ':turns:' .. queue, 'NX', int(num(redis.call('HGET', LIMIT, 'round'))), key)
end

-- A permit ends: its holder has ended, or found nothing to do with it (then it was not spent), or was lost (then its work is queued again).
local function give_up(permit, unused, lost)
  if redis.call('ZREM', LIMIT .. ':permits', permit) == 0 then return end
  local queue, score, slice, member, key = string.match(redis.call('HGET', LIMIT .. ':granted', permit) or NIL, '^(.-)\n(.-)\n(.-)\n(.-)\n(.*)$')
  redis.call('HDEL', LIMIT .. ':granted', permit)
  if not queue then return end
  if unused and num(redis.call('HGET', LIMIT .. ':spent', slice)) > 0 then redis.call('HINCRBY', LIMIT .. ':spent', slice, -1) end
  if lost then enqueue(queue, member, score, key) end
end
local function reclaim()
  if calm_until() > now then return end
  for _, permit in ipairs(redis.call('ZRANGEBYSCORE', LIMIT .. ':permits', '-inf', int(now), 'LIMIT', 0, 100)) do give_up(permit, false, true) end
end
local function next_lapse()
  local ends = tonumber(redis.call('ZRANGE', LIMIT .. ':permits', 0, 0, 'WITHSCORES')[2] or NIL)
  return ends and math.max(ends, calm_until())
end

-- Never more than `rate` in any window of `per`: what was given in a slice that has not wholly left the window counts.
local function spent_in(terms)
  local sum, oldest, first = 0, nil, slice_of(terms) - SLICES
  local all = redis.call('HGETALL', LIMIT .. ':spent')
  for i = 1, #all, 2 do
    local slice, count = tonumber(all[i]), num(all[i + 1])
    if slice < first or slice > first + 2 * SLICES then redis.call('HDEL', LIMIT .. ':spent', all[i])
    else
      sum = sum + count
      if count > 0 and (not oldest or slice < oldest) then oldest = slice end
    end
  end
  return sum, oldest
end
local function room(terms)
  if not terms.known then return 1000 end  -- whoever tells a wish tells its terms; where nobody knows any, nothing holds
  local open = terms.concurrency and terms.concurrency - redis.call('ZCARD', LIMIT .. ':permits') or 1000
  return math.min(open, terms.rate and terms.rate - spent_in(terms) or open)
end

-- Keys that were held back and may go on.
local function come_forward(queue)
  redis.call('ZREMRANGEBYSCORE', LIMIT .. ':back', '-inf', int(now))
  local aside = LIMIT .. ':aside:' .. queue
  for _, key in ipairs(redis.call('ZRANGEBYSCORE', aside, '-inf', int(now), 'LIMIT', 0, 100)) do
    redis.call('ZREM', aside, key)
    redis.call('ZADD', LIMIT .. ':turns:' .. queue, 'NX', int(num(redis.call('HGET', LIMIT, 'round'))), key)
  end
end
local function whose_turn(queue)
  for _ = 1, 100 do
    local first = redis.call('ZRANGE', LIMIT .. ':turns:' .. queue, 0, 0, 'WITHSCORES')
    local key = first[1]
    if not key then return nil end
    local until_ms = redis.call('ZSCORE', LIMIT .. ':back', key)
    if not until_ms then return key end
    redis.call('ZREM', LIMIT .. ':turns:' .. queue, key)
    redis.call('ZADD', LIMIT .. ':aside:' .. queue, until_ms, key)
  end
  return nil
end
local function hand_out(queue, key, terms, lease)
  local turns, line = LIMIT .. ':turns:' .. queue, line_of_key(queue, key)
  local round = num(redis.call('ZSCORE', turns, key))
  local popped = redis.call('ZPOPMIN', line)
  local permit, slice = int(next_fence()), int(slice_of(terms))
  redis.call('HSET', LIMIT, 'round', int(round))
  if redis.call('EXISTS', line) == 1 then redis.call('ZADD', turns, int(round + 1), key) else redis.call('ZREM', turns, key) end
  redis.call('ZADD', LIMIT .. ':permits', int(now + lease), permit)
  redis.call('HSET', LIMIT .. ':granted', permit, table.concat({queue, popped[2], slice, popped[1], key}, '\n'))
  if terms.rate then
    redis.call('HINCRBY', LIMIT .. ':spent', slice, 1)
    redis.call('PEXPIRE', LIMIT .. ':spent', int(terms.per * 1.02 + 1000))
  end
  return permit, popped[1]
end

-- When somebody must look here again for this queue: at once, if there is room; else when the clock makes some, or a lease ends, or a key comes back.
local function look_again(queue, terms, open)
  local due, when = P .. 'due', nil
  local function earlier(at) if at and (not when or at < when) then when = at end end
  if redis.call('EXISTS', LIMIT .. ':turns:' .. queue) == 1 then
    if open > 0 then poke(queue); earlier(now + 2000)
    elseif terms.known then
      local sum, oldest = spent_in(terms)
      if terms.rate and sum >= terms.rate and oldest then earlier(math.ceil((oldest + SLICES + 1) * terms.per / SLICES))
      else earlier(next_lapse()) end
    end
  end
  earlier(tonumber(redis.call('ZRANGE', LIMIT .. ':aside:' .. queue, 0, 0, 'WITHSCORES')[2] or NIL))
  earlier(next_lapse())
  if when then redis.call('ZADD', due, int(when), 'limit:' .. queue)
  else redis.call('ZREM', due, 'limit:' .. queue); redis.call('SREM', LIMIT .. ':queues', queue) end
end
local function tidy()
  if redis.call('EXISTS', LIMIT .. ':queues', LIMIT .. ':permits', LIMIT .. ':back', LIMIT .. ':spent') > 0 then return end
  redis.call('HDEL', LIMIT, 'round')
  if redis.call('HGET', LIMIT, 'hand') == '1' then return end
  redis.call('DEL', LIMIT, LIMIT .. ':granted')
  redis.call('SREM', P .. 'limits', name)
end
