-- mark_parking: an idle run is marked with its event number: as it is now it may be parked. Whatever happens to it afterwards takes that back,
-- because its event number grows (or the mark is dropped, where no event is written). What is bound to another run stays with it, and a run
-- stays while something that is bound to it has not ended, because that asks for it; one that has called very much is not looked through.
--! args: run_id idle_before
--! use: partition run
--! result: OK | BUSY | UNKNOWN, then n
local run = run_of(run_id)
if not run then return {'UNKNOWN', '0'} end
local idle = run.st == RUN_WAITING_SIGNAL and run.is ~= NIL and num(run.is) <= num(idle_before)
if not idle or is_op(run) or run.up ~= NIL then return {'BUSY', '0'} end
if run.op ~= NIL then
  local BOUND = run.key .. ':ops'
  if redis.call('SCARD', BOUND) > 1000 then return {'BUSY', '0'} end
  for _, bound in ipairs(redis.call('SMEMBERS', BOUND)) do
    if redis.call('HEXISTS', P .. 'active', bound) == 1 or redis.call('HEXISTS', P .. 'ops:open', bound) == 1 then return {'BUSY', '0'} end
  end
end
local n = int(redis.call('LLEN', run.key .. ':log'))
redis.call('HSET', run.key, 'pk', n)
return {'OK', n}
