-- Waiters: a sleep (`t`), a wait for a signal (`w`), an agent's answer (`a`). What satisfies one (signal, answer, its time) makes the step
-- ready in that script; a worker claims it and commits the consequence. The first script wins: it finds the step waiting, no other does.
local DUE_KIND = {t = 'timer', w = 'lapse', a = 'lapse'}
local NEVER = 8000000000000000
local function has_an_end(d) return d.kind == 't' or d.delay > 0 end

-- Its value stands from here on as the step's result; the commit keeps it.
local function put_value(run, index, rec, text)
  put(shard(run, index), index .. 'r', text)
  set_flag(rec, 'v', true)
end

-- Signals that came before anything waited for them: `e` of `run:<id>:sig` is their order, as `name;id,…`, and `p<id>` their payload.
local function take_early(run, index, rec, name)
  local key, rest, taken = run.key .. ':sig', {}, nil
  for _, entry in ipairs(list_of(redis.call('HGET', key, 'e') or NIL)) do
    local its_name, id = string.match(entry, '^(.-);(.*)$')
    if not taken and its_name == name then taken = id else rest[#rest + 1] = entry end
  end
  if not taken then return false end
  put_value(run, index, rec, redis.call('HGET', key, 'p' .. taken))
  redis.call('HDEL', key, 'p' .. taken)
  redis.call('HSET', key, 'e', table.concat(rest, ','), '#' .. taken, index)
  return true
end

-- Whether a step that was unblocked must wait. While its run is failing or stopping it takes nothing and is not counted.
local function awaits(run, index, rec, d)
  if not DUE_KIND[d.kind] or has(rec.flags, 's') or has(rec.flags, 'u') or has(rec.flags, 'v') then return false end
  if not stopping(run) then
    if d.kind == 'w' and take_early(run, index, rec, d.awaits) then return false end
    if has_an_end(d) then redis.call('ZADD', P .. 'due', int(now + d.delay), DUE_KIND[d.kind] .. ':' .. ref(run, index, NIL)) end
    add(run, 'o', 1)
    if d.kind == 'a' then add(run, 'oa', 1) end
    set(run, 'wi', run.wi == NIL and int(index) or run.wi .. ',' .. int(index))
  end
  rec.state = WAITING
  return true
end

local function close_waiter(run, index, d)
  if has_an_end(d) then redis.call('ZREM', P .. 'due', DUE_KIND[d.kind] .. ':' .. ref(run, index, NIL)) end
  if stopping(run) then return end
  local rest, open = {}, indexes_of(run.wi)
  for _, one in ipairs(open) do
    if one ~= index then rest[#rest + 1] = int(one) end
  end
  if #rest == #open then add(run, 'd', -1); return end  -- a sleep of 0.1, which counted it so
  add(run, 'o', -1)
  if d.kind == 'a' then add(run, 'oa', -1) end
  set(run, 'wi', table.concat(rest, ','))
end

local function forget_waiters(run)
  set(run, 'o', 0); set(run, 'oa', 0); set(run, 'ch', 0); set(run, 'wi', NIL)
end

-- How long an orphan may stay one, in ms: the longest that one of its agents may be waited for, as its step says, else as its start did.
function longest_wait(run)
  local longest, own = 0, num(run.it)
  for _, index in ipairs(indexes_of(run.wi)) do
    local said = descriptor(run, index).awaits
    local ms = said == NIL and own or num(said)
    longest = math.max(longest, ms > 0 and ms or NEVER)
  end
  return longest
end
