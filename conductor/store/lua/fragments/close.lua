-- The end of a run touches only the run: states of unfinished steps are derived, entries left in indexes are dropped by whoever meets them.
local function release_key(run)
  if run.k == NIL then return end
  local key = key_of(run)
  local mine = string.sub(redis.call('GET', key) or NIL, 1, #run.id) == run.id
  if mine then redis.call('PEXPIRE', key, num(redis.call('HGET', run.key, 'kr'))) end
end
-- Whoever asked for an op is told how it ended, unless the first attempt has answered its caller. After a loss (flag `1`, also where it does not
-- count towards poison) nobody knows whether the caller is still there; one that waited for a call of its own (`o`) has told its caller so, and one
-- whose caller has stopped waiting (`n`) answers nobody.
local function owe_telling(run, state)
  local rec = record(run, 0, NIL)
  local answered = run.qr == 'retry' and run.g == 1 and rec and rec.attempt <= 1 and not string.find(string.match(rec.flags, '^[^w]*'), '[1on]')
  local wanted = run.s ~= NIL or (run.qr == 'retry' and state == RUN_FAILED)
  if wanted and not answered and state ~= RUN_CANCELLED then redis.call('ZADD', P .. 'outbox', int(now), run.id .. ';' .. run.g) end
end
local function finish(run, state, reason)
  set(run, 'st', state)
  set(run, 'wy', reason)
  set(run, 'e', int(now))
  if run.op ~= NIL then release_ops(run) end
  if is_op(run) then
    redis.call('HDEL', P .. 'ops:open', run.id)
    owe_telling(run, state)
  else
    redis.call('HDEL', P .. 'active', run.id)
    redis.call('ZREM', P .. 'progress', run.id)
  end
  local keep = redis.call('HGET', run.key, state == RUN_COMPLETED and 'rc' or 'rf')
  redis.call('ZADD', P .. 'ended:' .. state, int(now + num(keep)), run.id)
  release_key(run)
  if run.ps ~= NIL then tell_parent(run) elseif run.up ~= NIL then wake_caller(run) end
  leave_lane(run)
end
local function end_run(run, state, reason)
  emit(run, 'e', state, reason)
  finish(run, state, reason)
end
-- What is bound to a run that has ended, fails or lives in another generation ends with it: here, by whoever meets it first.
local function end_unbound(run)
  if ended(run) then return end
  emit(run, 'K', 'run_ended', 'engine')
  finish(run, RUN_CANCELLED, 'run_ended')
end

-- Last steps run one after the other, before the run ends, and know its outcome.
local function next_hook(run)
  local rest, chosen = {}, nil
  for _, hook in ipairs(list_of(run.hk)) do
    local kind = string.sub(hook, 1, 1)
    local wanted = kind == 'n' or (kind == 'f' and run.oc ~= RUN_COMPLETED)
    if chosen or kind == 'u' or kind == 'U' then rest[#rest + 1] = hook elseif wanted then chosen = tonumber(string.sub(hook, 2)) end
  end
  set(run, 'hk', table.concat(rest, ','))
  if not chosen then return false end
  set(run, 'ph', 'H')
  emit(run, 'h', run.oc, chosen)
  unblock(run, chosen, NIL)
  return true
end

-- Code that is missing no longer matters to a run that is failing anyway.
local function lift(run)
  emit(run, 'r', 'failure')
  set(run, 'st', RUN_RUNNING)
  set(run, 'wy', NIL)
end

local function settle(run, reason)
  if ended(run) or run.st == RUN_QUEUED then return end
  if run.ph == 'U' then
    if run.a > 0 or (run.st == RUN_PAUSED and run.wy ~= 'code_missing') then return end
    if run.st == RUN_PAUSED then lift(run) end
    set(run, 'r', 0); set(run, 'd', 0); forget_waiters(run)
    local why = run.ow ~= NIL and run.ow or 'step_failed'
    set(run, 'ow', NIL)
    emit(run, 'p', why)
    set(run, 'st', RUN_PAUSED)
    set(run, 'wy', why)
    return
  end
  if run.ph == 'C' then
    if run.a > 0 or run.r > 0 or run.d > 0 then return end
    if next_hook(run) then return end
    end_run(run, run.oc, run.ow)
    return
  end
  local over = (run.ph == NIL and run.l == 0) or (run.ph == 'F' and run.a == 0)
  if not over and not (run.ph == 'H' and run.a == 0 and run.r == 0 and run.d == 0) then return end
  local plan, always = undo_of(run)
  if run.ph == 'F' and over and plan and (run.oc == RUN_COMPENSATING or (always and reason == 'deadline')) then
    begin_undo(run, RUN_FAILED, reason, NIL)
    return
  end
  if over then
    set(run, 'oc', run.f > 0 and RUN_FAILED or RUN_COMPLETED)
    set(run, 'ow', run.f > 0 and (is_op(run) and run.why or reason) or NIL)
    if run.st == RUN_PAUSED and run.wy == 'code_missing' then lift(run) end
    if run.ph == 'F' then set(run, 'r', 0); set(run, 'd', 0); forget_waiters(run) end
  end
  if run.hk ~= NIL and next_hook(run) then return end
  end_run(run, run.oc, run.oc == RUN_FAILED and run.ow or NIL)
end
-- Admitted with nothing left to do but its last steps: a retry of what had failed there.
on_admitted = function(run) if run.l == 0 then settle(run, 'step_failed') end end
