-- note: what a running attempt leaves beside its record: a checkpoint (`cp`), the progress a person sees (`live`), the answer of a call inside
-- it (`once`, under its `name`), that its code begins (`begun`). Idempotent by its meaning.
--! args: run_id index item held_fence generation kind name text
--! use: partition clock run step outcome_guard noted
--! result: OK | LOST | CANCELLED
local run = run_of(run_id)
if item ~= NIL then item = tonumber(item) end
local rec = run and record(run, tonumber(index), item)
local answer = answer_for(run, rec, tonumber(held_fence), tonumber(generation))
if answer == 'OK' and kind == 'begun' then
  set_flag(rec, 'g', true)
  save(run, tonumber(index), item, rec)
  write_all()
elseif answer == 'OK' then
  redis.call('HSET', run.key .. ':' .. kind, (item == NIL and index or (index .. ':' .. item)) .. (name ~= NIL and ':' .. name or NIL), text)
  if kind ~= 'live' then tell_noted(run) end
end
return {answer}
