-- recover_run: the indexes of one run say what its record says: a live run stands in the active-runs hash, an ended one in none but that of its end.
--! args: run_id dry
--! use: partition clock run save step each waiters ready lane regain
--! result: SKIPPED | RECOVERED | FINISHED | UNKNOWN
local run = run_of(run_id)
if not run then return {'UNKNOWN'} end
local ACTIVE = P .. (is_op(run) and 'ops:open' or 'active')
local listed = P .. (is_op(run) and 'ops' or 'runs')
local is_active = redis.call('HEXISTS', ACTIVE, run_id) == 1
local is_listed = redis.call('ZSCORE', listed, run_id)
if ended(run) then
  local ENDS = P .. 'ended:' .. run.st
  local is_over = redis.call('ZSCORE', ENDS, run_id)
  if is_listed and is_over and not is_active then return {'SKIPPED'} end
  if dry == '1' then return {'FINISHED'} end
  local keep = redis.call('HGET', run.key, run.st == RUN_COMPLETED and 'rc' or 'rf')
  redis.call('HDEL', ACTIVE, run_id)
  redis.call('ZREM', P .. 'progress', run_id)
  redis.call('ZADD', listed, int(run.t), run_id)
  redis.call('ZADD', ENDS, 'NX', int(num(redis.call('HGET', run.key, 'e')) + num(keep)), run_id)
  return {'FINISHED'}
end
local is_orphan = is_idle(run) and run.oa == run.o
local is_known = not is_orphan or redis.call('ZSCORE', P .. 'orphans:due', run_id)
if run.st == RUN_QUEUED then is_active = not is_active end  -- in its lane, and nowhere else
if is_active and is_listed and is_known and has_its_place(run) then return {'SKIPPED'} end
if dry == '1' then return {'RECOVERED'} end
redis.call('ZADD', listed, int(run.t), run_id)
regain_place(run)
if run.st == RUN_QUEUED then
  redis.call('HDEL', ACTIVE, run_id)
  redis.call('ZREM', P .. 'progress', run_id)
  return {'RECOVERED'}
end
redis.call('HSET', ACTIVE, run_id, table.concat({run.st, run.w, int(run.pg), run.is, run.ot, run.s}, ';'))
if is_orphan then
  redis.call('ZADD', P .. 'orphans', int(run.pg), run_id)
  redis.call('ZADD', P .. 'orphans:due', int(run.pg + longest_wait(run)), run_id)
elseif run.is == NIL and not is_op(run) then redis.call('ZADD', P .. 'progress', 'NX', int(run.pg), run_id) end
return {'RECOVERED'}
