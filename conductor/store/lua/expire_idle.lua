-- expire_idle: an orphan (idle, all it waits for are agents) → cancelled, reason idle_timeout. It is judged here, as it stands now: a run
-- that has moved since it was found is no longer due. `before` is the last progress it may have had; empty: what the run itself says counts.
--! args: run_id before dry
--! use: partition clock run save step each waiters ready lane bound undo close
--! result: OK | MOVED | ENDED | UNKNOWN, then state at pokes
local run = run_of(run_id)
if not run then return {'UNKNOWN', '', '', ''} end
if ended(run) then return {'ENDED', run.st, '', ''} end
local due = num(redis.call('ZSCORE', P .. 'orphans:due', run_id))
local late = before == NIL and due <= now or (before ~= NIL and run.pg <= tonumber(before) and due < NEVER)
if not is_idle(run) or run.oa < run.o or due == 0 or not late then return {'MOVED', run.st, '', ''} end
if dry == '1' then return {'OK', run.st, int(run.pg), ''} end
emit(run, 'K', 'idle_timeout', 'sweep')
finish(run, RUN_CANCELLED, 'idle_timeout')
redis.call('ZADD', P .. 'outbox', int(now), run.id .. ';' .. run.g)
save_ready()  -- what its lane admits now; of a child: its parent goes on
save_runs()
keep_clock()
write_all()
return {'OK', run.st, int(run.pg), table.concat(pokes, ',')}
