-- Lanes: so many runs at once, the others in one queue. A place is a run's id in a set: it is freed in the script that ends the run, which
-- admits the next, so no crash leaks one. Where a lane is fair its keys take turns: `turns` holds the round of each key's last run.
local ADMIT_AT_ONCE, admissions, on_admitted = 20, 0, nil
local function lane_key(name, tail) return P .. 'lane:' .. name .. (tail and ':' .. tail or NIL) end

-- What a start says of its lane counts from then on; else what the lane was last told, what the run was started with, the defaults.
local function lane_terms(run)
  local function read(text) return {string.match(text, '^(%d+);(%d*);(%d+);(%d)$')} end
  local t = read(run.said or NIL)
  if not t[1] then t = redis.call('HMGET', lane_key(run.ln), 'active', 'queued', 'timeout', 'fair') end
  if not t[1] then t = read(run.lt or redis.call('HGET', run.key, 'lt') or NIL) end
  if not t[1] then t = {'5', '20', '600000', '0'} end
  return {active = num(t[1]), queued = tonumber(t[2]), timeout = num(t[3]), fair = t[4] == '1', text = t}
end
local function lane_free(run, terms)
  return redis.call('ZCARD', lane_key(run.ln, 'queue')) == 0 and redis.call('SCARD', lane_key(run.ln, 'active')) < terms.active
end
local function lane_full(run)
  local terms = lane_terms(run)
  return terms.queued and not lane_free(run, terms) and redis.call('ZCARD', lane_key(run.ln, 'queue')) >= terms.queued
end

local function keep_terms(run, terms)
  redis.call('SADD', P .. 'lanes', run.ln)
  redis.call('HSET', lane_key(run.ln), 'active', terms.text[1], 'queued', terms.text[2], 'timeout', terms.text[3], 'fair', terms.text[4])
end

-- The place in the queue: in a fair lane first the round, then the order of arrival; else only that.
local function lane_score(run, terms)
  local lane, round = lane_key(run.ln), 0
  local arrived = redis.call('HINCRBY', lane, 'seq', 1)
  if terms.fair then
    local key = run.lk or redis.call('HGET', run.key, 'lk') or NIL
    local last = redis.call('HGET', lane .. ':turns', key)
    round = math.max(num(redis.call('HGET', lane, 'round')), last and num(last) + 1 or 0)
    redis.call('HSET', lane .. ':turns', key, int(round))
    arrived = math.fmod(arrived, 1e7)
  end
  return round * 1e7 + arrived
end

-- True: the run has a place. Else it is queued, and `roots` are opened when it is admitted; whoever calls says so in the log, then calls `admit`.
local function enter_lane(run, roots)
  local name, terms = run.ln, lane_terms(run)
  local free, lane = lane_free(run, terms), lane_key(run.ln)
  keep_terms(run, terms)
  if free then redis.call('SADD', lane .. ':active', run.id); return true end
  redis.call('ZADD', lane .. ':queue', int(lane_score(run, terms)), run.id)
  redis.call('HSET', run.key, 'ro', roots)
  if terms.timeout > 0 then redis.call('ZADD', P .. 'due', int(now + terms.timeout), 'lane:' .. run.id)
  else redis.call('ZREM', P .. 'due', 'lane:' .. run.id) end
  redis.call('HDEL', P .. 'active', run.id)
  redis.call('ZREM', P .. 'progress', run.id)
  set(run, 'st', RUN_QUEUED)
  set(run, 'wy', NIL)
  for index, flags in string.gmatch(roots, '(%d+)(%l*)') do
    save(run, tonumber(index), NIL, {state = PENDING, left = 0, flags = flags})
  end
  return false
end

local function admit_next(name, lane)
  local popped = redis.call('ZPOPMIN', lane .. ':queue')
  if not popped[1] then return false end
  local run = run_of(popped[1])
  if not run or run.st ~= RUN_QUEUED then return true end
  local roots = redis.call('HGET', run.key, 'ro') or NIL
  redis.call('SADD', lane .. ':active', run.id)
  redis.call('HSET', lane, 'round', int(math.floor(tonumber(popped[2]) / 1e7)))
  redis.call('HDEL', run.key, 'ro')
  redis.call('ZREM', P .. 'due', 'lane:' .. run.id)
  admissions = admissions + 1
  set(run, 'st', RUN_RUNNING)
  emit(run, 'a', (string.gsub(roots, '%l', NIL)))
  open_roots(run, roots)
  progress(run)
  if on_admitted then on_admitted(run) end
  return true
end
-- Admits in order while there are places, so many in one script; the due sweep does the rest. A lane that is empty leaves nothing behind.
local function admit(name)
  local lane = lane_key(name)
  local most = redis.call('HGET', lane, 'active')
  if not most then return end
  while redis.call('SCARD', lane .. ':active') < num(most) do
    if admissions >= ADMIT_AT_ONCE then
      if redis.call('EXISTS', lane .. ':queue') == 1 then redis.call('ZADD', P .. 'due', int(now), 'admit:' .. name) end
      return
    end
    if not admit_next(name, lane) then break end
  end
  if redis.call('EXISTS', lane .. ':queue') == 1 then return end
  redis.call('DEL', lane .. ':turns')
  redis.call('HDEL', lane, 'round', 'seq')
  if redis.call('EXISTS', lane .. ':active') == 1 then return end
  redis.call('DEL', lane)
  redis.call('SREM', P .. 'lanes', name)
end
local function leave_lane(run)
  if run.ln == NIL then return end
  redis.call('ZREM', lane_key(run.ln, 'queue'), run.id)
  redis.call('SREM', lane_key(run.ln, 'active'), run.id)
  redis.call('ZREM', P .. 'due', 'lane:' .. run.id)
  if run.was == RUN_QUEUED or run.st == RUN_QUEUED then redis.call('HDEL', run.key, 'ro') end
  admit(run.ln)
end
