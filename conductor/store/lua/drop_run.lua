-- drop_run: a run leaves the store as it stands, whatever its state, because another copy of it takes its place: the archive's, after an old
-- backup was restored. Only if it is still as it was seen; nothing is told of it, for the other copy has its own log.
--! args: run_id generation at_event
--! use: partition clock run save step each waiters ready lane whole
--! result: OK | CHANGED | UNKNOWN, then pokes
local run = run_of(run_id)
if not run then return {'UNKNOWN', ''} end
if run.g ~= tonumber(generation) or redis.call('LLEN', run.key .. ':log') ~= tonumber(at_event) then return {'CHANGED', ''} end

-- The copy finds its key; if nobody brings it, the key goes in its time.
if run.k ~= NIL and string.sub(redis.call('GET', key_of(run)) or NIL, 1, #run_id) == run_id then
  redis.call('PEXPIRE', key_of(run), num(redis.call('HGET', run.key, 'kr')))
end
unlink_all(keys_of(run))
forget_graph(run.h)
for _, index in ipairs({'active', 'ops:open'}) do redis.call('HDEL', P .. index, run_id) end
for _, index in ipairs({'runs', 'ops', 'progress', 'orphans', 'orphans:due', 'outbox'}) do redis.call('ZREM', P .. index, run_id) end
for state in pairs(TERMINAL) do redis.call('ZREM', P .. 'ended:' .. state, run_id) end
if is_op(run) then redis.call('ZREM', P .. 'queued:' .. run.qr, run_id) end
run.st, run.is = RUN_CANCELLED, NIL  -- for what saves the runs that its lane admits now; nothing of it is written
leave_lane(run)
save_ready()
save_runs()
keep_clock()
write_all()
return {'OK', table.concat(pokes, ',')}
