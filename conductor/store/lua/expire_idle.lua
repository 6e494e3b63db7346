-- expire_idle: an orphan (idle, all it waits for are agents) → cancelled, reason idle_timeout. It is judged here, as it stands now: a run
-- that has moved since it was found is no longer due. `before` is the last progress it may have had; empty: what the run itself says counts.
-- One that is parked is brought back first, by whoever calls this (PARKED), and then judged by its record.
--! args: run_id before dry
--! use: partition clock run save step each waiters ready lane bound undo close stub
--! result: OK | PARKED | MOVED | ENDED | UNKNOWN, then state at pokes
local run, due = run_of(run_id), num(redis.call('ZSCORE', P .. 'orphans:due', run_id))
local function is_late(moved_at) return before == NIL and due <= now or (before ~= NIL and moved_at <= tonumber(before) and due < NEVER) end
if not run then
  local stub, moved_at = stub_of(run_id), num(redis.call('ZSCORE', P .. 'orphans', run_id))
  if not stub then return {'UNKNOWN', '', '', ''} end
  return {due > 0 and is_late(moved_at) and 'PARKED' or 'MOVED', state_of(stub), int(moved_at), ''}
end
if ended(run) then return {'ENDED', run.st, '', ''} end
if not is_idle(run) or run.oa < run.o or due == 0 or not is_late(run.pg) then return {'MOVED', run.st, '', ''} end
if dry == '1' then return {'OK', run.st, int(run.pg), ''} end
emit(run, 'K', 'idle_timeout', 'sweep')
finish(run, RUN_CANCELLED, 'idle_timeout')
redis.call('ZADD', P .. 'outbox', int(now), run.id .. ';' .. run.g)
save_ready()  -- what its lane admits now; of a child: its parent goes on
save_runs()
keep_clock()
write_all()
return {'OK', run.st, int(run.pg), table.concat(pokes, ',')}
