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
