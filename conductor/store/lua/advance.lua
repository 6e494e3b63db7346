-- advance: waiting → ready, with an outside agent's answer as the step's result. The first answer wins; the same one again is no news.
-- To a parked run it is said when that is back; a step whose waiter is not open is looked up first (PARKED), because its stub knows no answers.
--! args: run_id index digest payload actor
--! use: partition clock run save step each waiters ready stub answering
--! result: OK | SAME | TAKEN | NOT_WAITING | PARKED | ENDED | UNKNOWN, then state step pokes
index = tonumber(index)
local run = run_of(run_id)
if run then
  local word, step = take_answer(run, index, digest, payload, actor)
  if word == 'OK' then
    save_ready()
    save_runs()
    keep_clock()
    write_all()
  end
  return {word, run.st, step, table.concat(pokes, ',')}
end

local stub = stub_of(run_id)
if not stub then return {'UNKNOWN', '', '', ''} end
local state = state_of(stub)
local before = redis.call('HGET', stub.buffer, '@' .. int(index))
if before then return {before == digest and 'SAME' or 'TAKEN', state, '', ''} end
if TERMINAL[stub.st] then return {'ENDED', state, '', ''} end
if not is_open(stub, index) then wake_soon(stub); return {'PARKED', state, '', ''} end
keep_for(stub, int(index), {'@' .. int(index), digest}, payload, 'answer', int(index), digest, actor)
return {'OK', state, READY, ''}
