-- resume_run: paused → running. What was met while it was paused stands ready again, at most a thousand entries a call (then MORE).
-- A run paused by a failed step is not resumed here but reopened, with fresh budgets (STEP_FAILED).
--! args: caller number run_id actor only_generation
--! use: partition clock token run save step each waiters ready unpause stub
--! result: OK | MORE | NOT_PAUSED | STEP_FAILED | ENDED | SUPERSEDED (it lives in another generation) | UNKNOWN, then state pokes
if told then return told end
local run = run_of(run_id)
if not run then
  local stub = stub_of(run_id)
  if not stub then return tell({'UNKNOWN', '', ''}) end
  if only_generation ~= NIL and stub.g ~= only_generation then return tell({'SUPERSEDED', state_of(stub), ''}) end
  if stub.st ~= RUN_PAUSED then return tell({TERMINAL[stub.st] and 'ENDED' or 'NOT_PAUSED', state_of(stub), ''}) end
  stub.st, stub.wy = NIL, NIL
  save_stub(stub)
  redis.call('ZADD', P .. 'wake', int(now), run_id)
  return tell({'OK', state_of(stub), ''})
end
if only_generation ~= NIL and run.g ~= tonumber(only_generation) then return tell({'SUPERSEDED', run.st, ''}) end
if ended(run) then return tell({'ENDED', run.st, ''}) end
if run.st ~= RUN_PAUSED and redis.call('EXISTS', run.key .. ':held') == 0 then return tell({'NOT_PAUSED', run.st, ''}) end
if run.ph == 'U' and run.a == 0 then return tell({'STEP_FAILED', run.st, ''}) end
if run.ph == 'U' and run.st ~= RUN_PAUSED then return tell({'NOT_PAUSED', run.st, ''}) end
if run.ph == 'U' then
  -- Somebody still holds a step: only the person's pause is lifted, and the failure pauses the run when the last one has ended.
  emit(run, 'r', actor)
  set(run, 'st', RUN_RUNNING)
  set(run, 'wy', NIL)
  save_runs()
  keep_clock()
  write_all()
  return tell({'OK', run.st, ''})
end
local restored = unpause(run, actor)
save_ready()
save_runs()
keep_clock()
write_all()
return tell({restored == 1000 and 'MORE' or 'OK', run.st, table.concat(pokes, ',')})
