-- cancel_run: any state that is not final → cancelled. No claim and no commit of this run can follow in the log. Idempotent by its meaning.
-- With `compensate` the run is undone first, if it has anything to undo with; then a further cancel changes nothing. What is to be undone stands
-- in a run's log: a parked one is brought back first, by whoever calls this (PARKED).
--! args: run_id reason actor terminate compensate only_generation
--! use: partition clock run save step each waiters ready lane bound undo close stub
--! result: OK | ALREADY | SUPERSEDED (it lives in another generation than `only_generation`) | COMPENSATING | PARKED | ENDED | UNKNOWN, then state reason at pokes
local run = run_of(run_id)
if not run then
  local stub = stub_of(run_id)
  if not stub then return {'UNKNOWN', '', '', '', ''} end
  if only_generation ~= NIL and stub.g ~= only_generation then return {'SUPERSEDED', state_of(stub), '', '', ''} end
  if TERMINAL[stub.st] then return {'ALREADY', stub.st, stub.wy, stub.e, ''} end
  if compensate == '1' then wake_soon(stub); return {'PARKED', state_of(stub), '', '', ''} end
  -- It is over from here on; its record says so when it is back, which this brings about.
  stub.st, stub.wy, stub.actor, stub.e = RUN_CANCELLED, reason, actor, int(now)
  save_stub(stub)
  redis.call('ZADD', P .. 'wake', int(now), run_id)
  leave_lane(stub)  -- its place is free at once, even if the archive is away
  save_ready()
  save_runs()
  keep_clock()
  write_all()
  return {'OK', stub.st, reason, stub.e, table.concat(pokes, ',')}
end
if only_generation ~= NIL and run.g ~= tonumber(only_generation) then return {'SUPERSEDED', run.st, '', '', ''} end
if ended(run) then
  local at = redis.call('HGET', run.key, 'e') or ''
  return {run.st == RUN_CANCELLED and 'ALREADY' or 'ENDED', run.st, run.wy, at, ''}
end
if run.st == RUN_COMPENSATING then return {'COMPENSATING', run.st, run.wy, '', ''} end
if terminate == '1' then set(run, 'tm', '1') end
local plan = undo_of(run)
-- What is queued in its lane for the first time has done nothing; a retry that is queued has what its earlier lives completed.
if compensate == '1' and plan and (run.st ~= RUN_QUEUED or run.g > 1) then
  set(run, 'hk', 'u' .. plan)  -- a cancel runs no last steps, with or without undoing
  redis.call('HDEL', run.key, 'bl')
  leave_queue(run)
  begin_undo(run, RUN_CANCELLED, reason, actor)
else
  emit(run, 'K', reason, actor)
  finish(run, RUN_CANCELLED, reason)
end
save_ready()
save_runs()
keep_clock()
write_all()
return {'OK', run.st, reason, int(now), table.concat(pokes, ',')}
