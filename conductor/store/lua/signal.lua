-- signal: waiting → ready, with the signal's payload as the step's result. What nothing waits for yet is kept in order, a hundred for a run.
-- Idempotent by its id. `waits` are the steps that wait for this name; while a run is failing or finishing a signal is kept for its next life.
-- To a parked run it is said when that is back, which this brings about.
--! args: run_id name id payload waits most
--! use: partition clock run save step each waiters ready stub answering
--! result: OK | KEPT | ALREADY | OVER | FULL | ENDED | UNKNOWN, then state index pokes
local run = run_of(run_id)
if run then
  local word, index = take_signal(run, name, id, payload, waits, tonumber(most))
  if word == 'OK' or word == 'KEPT' then
    save_ready()
    save_runs()
    keep_clock()
    write_all()
  end
  return {word, run.st, index, table.concat(pokes, ',')}
end

local stub = stub_of(run_id)
if not stub then return {'UNKNOWN', '', '', ''} end
local state = state_of(stub)
if has_come(stub, id) then return {'ALREADY', state, '', ''} end
if TERMINAL[stub.st] then return {'ENDED', state, '', ''} end
local taker, later = nil, false
for _, index in ipairs(indexes_of(waits)) do
  if not taker and is_open(stub, index) then taker = index end
  later = later or not is_past(stub, index)
end
if not later then return {'OVER', state, '', ''} end
if not taker and kept_by(stub) >= tonumber(most) then return {'FULL', state, '', ''} end
keep_for(stub, taker, {'#' .. id, ''}, payload, 'signal', name, id, waits)
return {taker and 'OK' or 'KEPT', state, taker and int(taker) or '', ''}
