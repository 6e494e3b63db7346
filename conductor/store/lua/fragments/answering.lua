-- What satisfies a waiter: a signal, an agent's answer. Each gives a word and what belongs to it; nothing is saved here.
local function take_signal(run, name, id, payload, waits, most)
  local SIG = run.key .. ':sig'
  local before = redis.call('HGET', SIG, '#' .. id)
  if before then return 'ALREADY', before end
  if ended(run) then return 'ENDED', NIL end
  if run.st == RUN_COMPENSATING then return 'OVER', NIL end  -- it has no next life
  local later = false
  for _, index in ipairs(indexes_of(waits)) do
    local rec = record(run, index, NIL)
    if rec and rec.state == WAITING and run.ph == NIL then
      close_waiter(run, index, descriptor(run, index))
      put_value(run, index, rec, payload)
      emit(run, 'v', index, id)
      put_back(run, index, NIL, rec)
      redis.call('HSET', SIG, '#' .. id, index)
      return 'OK', int(index)
    end
    later = later or not rec or rec.state == PENDING or rec.state == WAITING
  end
  if not later then return 'OVER', NIL end
  local early = redis.call('HGET', SIG, 'e') or NIL
  if #list_of(early) >= most then return 'FULL', NIL end
  redis.call('HSET', SIG, '#' .. id, NIL, 'p' .. id, payload, 'e', early .. (early == NIL and NIL or ',') .. name .. ';' .. id)
  emit(run, 'y', name, id)
  return 'KEPT', NIL
end

local function take_answer(run, index, digest, payload, actor)
  local SIG = run.key .. ':sig'
  local before = redis.call('HGET', SIG, '@' .. int(index))
  if before then return before == digest and 'SAME' or 'TAKEN', NIL end
  if ended(run) then return 'ENDED', NIL end
  local rec = record(run, index, NIL)
  if not rec or rec.state ~= WAITING or run.ph ~= NIL then return 'NOT_WAITING', rec and rec.state or PENDING end
  close_waiter(run, index, descriptor(run, index))
  put_value(run, index, rec, payload)
  emit(run, 'v', index, actor)
  put_back(run, index, NIL, rec)
  redis.call('HSET', SIG, '@' .. int(index), digest)
  return 'OK', READY
end

-- What is said to a parked run is kept in order and done when it is back; `taken` says which of its waiters has its answer by then.
local function keep_for(stub, taken, mark, payload, ...)
  local number = redis.call('HINCRBY', stub.buffer, 'n', 1)
  redis.call('HSET', stub.buffer, number, table.concat({...}, '\n'), number .. 'p', payload, mark[1], mark[2])
  if taken then leave_orphans(stub.id); redis.call('HSET', stub.buffer, '^' .. taken, '1') else redis.call('HINCRBY', stub.buffer, 'e', 1) end
  wake_soon(stub)
end
-- Whether a signal had come before, to the run or to its stub, and how many wait for their wait.
local function has_come(stub, id)
  if redis.call('HEXISTS', stub.buffer, '#' .. id) == 1 then return true end
  return string.find(',' .. stub.ids .. ',', ',' .. short_id(id) .. ',', 1, true) ~= nil
end
local function kept_by(stub) return num(stub.kept) + num(redis.call('HGET', stub.buffer, 'e')) end
local function is_open(stub, index)
  for _, open in ipairs(indexes_of(stub.wi)) do
    if open == index then return redis.call('HEXISTS', stub.buffer, '^' .. index) == 0 end
  end
  return false
end
local function is_past(stub, index)
  for _, past in ipairs(indexes_of(stub.past)) do if past == index then return true end end
  return redis.call('HEXISTS', stub.buffer, '^' .. index) == 1
end
