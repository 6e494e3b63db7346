-- park_run: a run that is in the archive as it was at event `n`, and has been left alone since, leaves a stub. `waits` are its steps that wait for
-- signals: the stub knows which of them are over. The members of the due index that are its own follow; the earliest wakes it.
--! args: run_id n waits
--! use: partition clock run step stub whole
--! result: OK | CHANGED | UNKNOWN
local run = run_of(run_id)
if not run then
  local stub = stub_of(run_id)
  return {stub and stub.n == n and 'OK' or 'UNKNOWN'}
end
if redis.call('HGET', run.key, 'pk') ~= n or redis.call('LLEN', run.key .. ':log') ~= tonumber(n) or run.is == NIL then return {'CHANGED'} end

local past = {}
for _, index in ipairs(indexes_of(waits)) do
  local rec = record(run, index, NIL)
  if rec and rec.state ~= PENDING and rec.state ~= WAITING then past[#past + 1] = int(index) end
end
local ids, kept = {}, list_of(redis.call('HGET', run.key .. ':sig', 'e') or NIL)
for _, field in ipairs(redis.call('HKEYS', run.key .. ':sig')) do
  if string.sub(field, 1, 1) == '#' then ids[#ids + 1] = short_id(string.sub(field, 2)) end
end
local wake_at = tonumber(redis.call('ZSCORE', P .. 'orphans:due', run_id) or math.huge)
for i = 4, #ARGV do wake_at = math.min(wake_at, tonumber(redis.call('ZSCORE', P .. 'due', ARGV[i]) or math.huge)) end
-- One that its timer is about to move, or has woken just now, is not parked again before the timer has fired.
if wake_at < now + 5000 then return {'CHANGED'} end
for i = 4, #ARGV do redis.call('ZREM', P .. 'due', ARGV[i]) end
local bl = redis.call('HGET', run.key, 'bl') or NIL
save_stub({id = run_id, n = n, g = int(run.g), h = run.h, st = NIL, wy = NIL, actor = NIL, e = NIL, t = int(run.t), is = run.is, wi = run.wi,
  past = table.concat(past, ','), ids = table.concat(ids, ','), kept = #kept > 0 and #kept or NIL, bl = bl, ln = run.ln, w = run.w, k = run.k})
if wake_at < 8000000000000000 then redis.call('ZADD', P .. 'wake', int(wake_at), run_id) end
unlink_all(keys_of(run))
redis.call('HDEL', P .. 'active', run_id)
for _, index in ipairs({'runs', 'progress'}) do redis.call('ZREM', P .. index, run_id) end  -- an orphan stays one
return {'OK'}
