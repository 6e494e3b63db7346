-- lose_stub: the archive has no row of a parked run. It is paused, for a person to bring the archive back; one that was cancelled is over.
--! args: run_id n
--! use: partition clock run save step each waiters ready lane stub whole
--! result: OK | CHANGED, then pokes
local stub = stub_of(run_id)
if not stub or stub.n ~= n then return {'CHANGED', ''} end
redis.call('ZREM', P .. 'wake', run_id)
if stub.st ~= RUN_CANCELLED then
  stub.st, stub.wy = RUN_PAUSED, 'archive_missing'
  save_stub(stub)
  return {'OK', ''}
end
local key = key_of(stub)
if stub.k ~= NIL and string.sub(redis.call('GET', key) or NIL, 1, #run_id) == run_id then redis.call('DEL', key) end
redis.call('UNLINK', stub.buffer)
redis.call('HDEL', P .. 'parked', run_id)
forget_graph(stub.h)
leave_lane(stub)
save_ready()
save_runs()
keep_clock()
write_all()
return {'OK', table.concat(pokes, ',')}
