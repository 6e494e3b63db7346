-- fire_due: what the clock brings about. Retries, timers and waits that have lapsed become ready; a start opens its run; `expires` and `deadline` end one.
--! args: caller number limit partitions
--! use: partition clock token run save step each waiters ready lane bound undo close unpause release budget unbind anew
--! result: OK now pokes looked fired…
if told then return told end
local DUE = P .. 'due'
local fired = {}
local fire = {}

function fire.retry(run, index, item)
  local rec, d = record(run, index, item), descriptor(run, index)
  if not rec or rec.state ~= RETRY_PENDING or out_of_play(run, d) or closed(run, index, item) then return end
  if over_budget(d) then postpone(run, index, item); return end
  if is_op(run) and run.wy ~= NIL then set(run, 'wy', NIL) end
  if not stopping(run) then add(run, 'd', -1) end
  emit(run, 'u', index, item, 'retry')
  put_back(run, index, item, rec)
end

-- A time that was waited for, or until which something else was: `y` tells the worker that it did not come.
function fire.timer(run, index)
  local rec, d = record(run, index, NIL), descriptor(run, index)
  if not rec or rec.state ~= WAITING or out_of_play(run, d) then return end
  close_waiter(run, index, d)
  if d.kind ~= 't' then set_flag(rec, 'y', true) end
  emit(run, 'u', index, NIL, DUE_KIND[d.kind])
  put_back(run, index, NIL, rec)
end
fire.lapse = fire.timer

function fire.start(run)
  local roots = redis.call('HGET', run.key, 'ro')
  if not roots then return end
  if run.ph == NIL and run.ln ~= NIL and run.st == RUN_PAUSED then  -- it asks for its place when it is resumed; until then it is looked at now and then
    redis.call('ZADD', DUE, int(now + 5000), 'start:' .. run.id)
    return
  end
  redis.call('HDEL', run.key, 'ro')
  if run.ph ~= NIL then return end  -- its deadline came first
  add(run, 'd', -1)
  if run.ln ~= NIL and not enter_lane(run, roots) then
    emit(run, 'q', run.ln)
    admit(run.ln)
    return
  end
  emit(run, 'u', (string.gsub(roots, '%l', '')), NIL, 'start')
  open_roots(run, roots)
end

-- Its time in the queue of its lane is over. Nothing of it has run, so nothing of it runs now: it has no last steps.
function fire.lane(run)
  if run.st == RUN_QUEUED then end_run(run, RUN_FAILED, 'lane_busy') end
end
function fire.admit(name) admit(name) end
-- In the home of a limit: there may be room again. Should the poke be lost, the next one is due while somebody wants a permit.
function fire.limit(queue)
  poke(queue)
  local turns = P .. 'limit:' .. string.match(queue, '!(.*)$') .. ':turns:' .. queue
  if redis.call('EXISTS', turns) == 1 then redis.call('ZADD', DUE, int(now + 5000), 'limit:' .. queue) end
end

function fire.expires(run)
  if run.ot ~= NIL or run.st == RUN_PAUSED or run.st == RUN_COMPENSATING then return end
  emit(run, 'K', 'expired', 'sweep')
  finish(run, RUN_CANCELLED, 'expired')
end

-- The deadline raises the generation, so that what still runs is refused; last steps run as after any failure.
function fire.deadline(run)
  if run.ph == 'H' or run.ph == 'C' then return end
  set(run, 'g', run.g + 1)
  emit(run, 'd', run.g)
  local _, undone = undo_of(run)
  -- Queued for the first time it has done nothing; a queued retry has what its earlier lives completed.
  if run.st == RUN_QUEUED and not (undone and run.g > 2) then end_run(run, RUN_FAILED, 'deadline'); return end
  leave_queue(run)
  set(run, 'ph', 'F')
  set(run, 'a', 0)
  set(run, 'f', math.max(1, run.f))
  if run.st == RUN_PAUSED then set(run, 'st', RUN_RUNNING); set(run, 'wy', NIL) end
  settle(run, 'deadline')
end

-- What a resume, a reopening or an unhold had no room for.
function fire.held(run) if run.st ~= RUN_PAUSED then unpause(run, 'sweep') end end
function fire.anew(run) begin_items_anew(run, 8) end
fire.unbound = unbind
function fire.unhold(scope) if redis.call('HEXISTS', P .. 'holds', scope) == 0 then release(scope) end end

local found = redis.call('ZRANGEBYSCORE', DUE, '-inf', int(now), 'LIMIT', 0, limit)
for _, member in ipairs(found) do
  local kind, rest = string.match(member, '^(%a+):(.*)$')
  local id, index, item = parse_ref(rest or NIL)
  local of_run = kind ~= 'unhold' and kind ~= 'unbound' and kind ~= 'admit' and kind ~= 'limit'
  local run = fire[kind] and of_run and run_of(id or rest)
  -- What a newer release wrote is left to it; looked at again in a minute.
  if fire[kind] then redis.call('ZREM', DUE, member) else redis.call('ZADD', DUE, 'XX', int(now + 60000), member) end
  if fire[kind] and not of_run then fire[kind](rest)
  elseif run and not ended(run) then
    fire[kind](run, index, item)
    fired[#fired + 1] = member
  end
end
save_ready()
save_runs()
keep_clock()
write_all()
return tell({'OK', int(now), table.concat(pokes, ','), int(#found), unpack(fired)})
