-- renew: an operation that an earlier life of its run had called, and that has not completed, begins anew in the next life: under its own id, so
-- that its key outside stays the same, and as doubtful as it was. With a `tag` the caller claims it in the same script; asked again, it still holds it.
-- `bond` is what start_run takes as `up`. With `same` 0 other values are asked for than before: refused while an earlier attempt is in doubt.
--! args: run_id bond graph input same tag
--! use: partition clock run save step each waiters ready lane give called
--! result: OK pokes claim | EXISTS pokes claim | CHANGED | RUN_ENDED | UNKNOWN
local run = run_of(run_id)
if not run then return {'UNKNOWN', '', ''} end
local up, called = calls.read(bond)
if unbound({up = up, ps = NIL}) then return {'RUN_ENDED', '', ''} end
local parent = above({up = up})
local life, rec = calls.life(parent), record(run, 0, NIL)
if run.st == RUN_COMPLETED or redis.call('HGET', run.key, 'ul') == life or (not ended(run) and run.up == up) then
  local mine = tag ~= NIL and run.ot == tag and rec.state == RUNNING and not ended(run)
  return {'EXISTS', '', mine and line_of(run, 0, NIL, rec, descriptor(run, 0), 0) or ''}
end
local doubt = has(rec.flags, 'd') or rec.state == RUNNING  -- whose outcome nobody will hear any more
if doubt and same ~= '1' then return {'CHANGED', '', ''} end

if ended(run) then
  redis.call('ZREM', P .. 'ended:' .. run.st, run_id)
  redis.call('HDEL', run.key, 'e')
else
  emit(run, 'K', 'run_ended', 'engine')  -- nobody has met it yet
  unleased[1] = ref(run, 0, NIL)
  redis.call('ZREM', P .. 'due', 'retry:' .. ref(run, 0, NIL))
end
set(run, 'g', run.g + 1)
set(run, 'st', RUN_RUNNING)
for _, field in ipairs({'wy', 'ph', 'oc', 'ow'}) do set(run, field, NIL) end
for _, field in ipairs({'f', 'r', 'd', 'a'}) do set(run, field, 0) end
set(run, 'l', 1)
set(run, 'up', up)
put(run.key, 'i', input)
put(run.key, 'ra', int(now))
redis.call('HINCRBY', run.key, 'lv', 1)
calls.bind(parent, run, called)
emit(run, 'g', run.g, '0', NIL, 'run')
unblock(run, 0, (doubt and 'd' or NIL) .. ((rec.attempt > 0 or has(rec.flags, 'o')) and 'o' or NIL))
if tag ~= NIL and run.h == graph then
  for _, entry in ipairs(fresh) do claim_step(run, 0, record(run, 0, NIL), descriptor(run, 0)) end
  fresh = {}
end
progress(run)
local lines = refs()
save_ready()
save_runs()
keep_clock()
write_all()
return {'OK', table.concat(pokes, ','), lines[1] or ''}
