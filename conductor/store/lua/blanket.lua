-- blanket: consent for everything in a run, given or taken back; it is worth nothing once the run has ended, and is taken away then.
--! args: run_id on
--! use: partition clock run stub noted
--! result: OK | ENDED | UNKNOWN
local run = run_of(run_id)
if not run then
  local stub = stub_of(run_id)
  if not stub then return {'UNKNOWN'} end
  if TERMINAL[stub.st] then return {'ENDED'} end
  stub.bl = on == '1' and '1' or NIL
  save_stub(stub)
  if stub.st == NIL then wake_soon(stub) end  -- its copy does not know of it: it comes back, and is copied anew
  return {'OK'}
end
if ended(run) then
  redis.call('HDEL', run.key, 'bl')
  return {'ENDED'}
end
redis.call('HDEL', run.key, 'pk')  -- no event tells a parker of it
if on == '1' then redis.call('HSET', run.key, 'bl', '1') else redis.call('HDEL', run.key, 'bl') end
tell_noted(run)
return {'OK'}
