-- restore_run: a run whose other keys are back (`restore_part`) is there again: from its stub, or because the store had lost it. What was said to
-- its stub is done here, in order, so that nobody comes before it. Where ready entries and leases of a run that was lost belong is derived
-- from its records by whoever calls this, as for a run that is mended; an idle run has none. One that had ended is there as ended.
-- After the named arguments: `lines` pairs (index, line) of the graph, `fields` pairs of the run hash, `due` pairs (member, ms), `sizes` triples
-- (tail, kind, length) of its other keys: if one is not so, what stands there is not, or not only, this snapshot (TORN).
--! args: run_id expected doc graph lines fields due sizes
--! use: partition clock run save step each waiters ready lane regain bound undo close stub answering noted
--! result: OK | CHANGED | TORN, then state pokes
local RUN, GRAPH = P .. 'run:' .. run_id, P .. 'graph:' .. graph
if redis.call('EXISTS', RUN) == 1 or not is_expected(run_id, expected) then return {'CHANGED', '', ''} end
local at = #ARGV - 3 * tonumber(sizes) + 1
for i = at, #ARGV, 3 do
  local length = redis.call(({hash = 'HLEN', list = 'LLEN', set = 'SCARD', zset = 'ZCARD'})[ARGV[i + 1]], RUN .. ':' .. ARGV[i])
  if length ~= tonumber(ARGV[i + 2]) then return {'TORN', '', ''} end
end

at = 9
local function each_pair(count, take)
  for _ = 1, tonumber(count) do take(ARGV[at], ARGV[at + 1]); at = at + 2 end
end
local is_known = redis.call('EXISTS', GRAPH) == 1
if not is_known then put(GRAPH, 'doc', doc) end
each_pair(lines, function(index, line) if not is_known then put(GRAPH, index, line) end end)
each_pair(fields, function(name, value) put(RUN, name, value) end)
each_pair(due, function(member, ms) redis.call('ZADD', P .. 'due', ms, member) end)
write_all()
writes, write_order = {}, {}

local stub = stub_of(run_id)
redis.call('HDEL', RUN, 'pk')
local run = run_of(run_id)
if stub and not ended(run) and (redis.call('HGET', RUN, 'bl') or NIL) ~= stub.bl then
  redis.call(unpack(stub.bl == NIL and {'HDEL', RUN, 'bl'} or {'HSET', RUN, 'bl', stub.bl}))
  tell_noted(run)
end
if not stub then redis.call('HINCRBY', P .. 'graphs', graph, 1) end
if not stub and not ended(run) then set(run, 'rs', '1') end
redis.call('ZADD', P .. (is_op(run) and 'ops' or 'runs'), int(run.t), run_id)
if run.k ~= NIL and not ended(run) then
  -- Its key may have been taken by another run while this one was lost.
  local key = key_of(run)
  local owner = redis.call('GET', key)
  if not owner then redis.call('SET', key, run_id .. ';' .. (redis.call('HGET', RUN, 'kd') or NIL))
  elseif string.sub(owner, 1, #run_id) ~= run_id then set(run, 'k', NIL)
  else redis.call('PERSIST', key) end
end
if ended(run) then
  -- As if it had been here since its end; but for a while at least, because whoever brought it back has still to say what with. Of what was
  -- said to its stub nothing can be done.
  local over = num(redis.call('HGET', RUN, 'e')) + num(redis.call('HGET', RUN, run.st == RUN_COMPLETED and 'rc' or 'rf'))
  redis.call('ZADD', P .. 'ended:' .. run.st, int(math.max(over, now + 600000)), run_id)
  release_key(run)
  if run.ps ~= NIL then tell_parent(run) end
  if stub then leave_lane(run) end
elseif not stub or stub.st ~= RUN_CANCELLED then regain_place(run) end  -- one that was cancelled as a stub has left its lane
if run.st ~= RUN_QUEUED and not ended(run) then
  redis.call('HSET', P .. (is_op(run) and 'ops:open' or 'active'), run_id,
    table.concat({run.st, run.w, int(run.pg), run.is, run.ot, run.s}, ';'))
end
if ended(run) then
elseif run.is ~= NIL and run.oa == run.o then
  redis.call('ZADD', P .. 'orphans', int(run.pg), run_id)
  redis.call('ZADD', P .. 'orphans:due', int(run.pg + longest_wait(run)), run_id)
elseif run.is == NIL and not is_op(run) and run.st ~= RUN_QUEUED then redis.call('ZADD', P .. 'progress', int(run.pg), run_id) end

if stub then
  for i = 1, ended(run) and 0 or num(redis.call('HGET', stub.buffer, 'n')) do
    local said, payload = redis.call('HGET', stub.buffer, i), redis.call('HGET', stub.buffer, i .. 'p')
    local verb, first, second, third = string.match(said, '^(.-)\n(.-)\n(.-)\n(.*)$')
    if verb == 'signal' then take_signal(run, first, second, payload, third, math.huge)
    else take_answer(run, tonumber(first), second, payload, third) end
  end
  if stub.st == RUN_CANCELLED and not ended(run) then
    emit(run, 'K', stub.wy, stub.actor)
    finish(run, RUN_CANCELLED, stub.wy)
    -- It was over when that was acknowledged, not now.
    run.events[#run.events] = (string.gsub(run.events[#run.events], '^K;%d+', 'K;' .. stub.e))
    set(run, 'e', stub.e)
    redis.call('ZADD', P .. 'ended:' .. RUN_CANCELLED, int(num(stub.e) + num(redis.call('HGET', RUN, 'rf'))), run_id)
  end
  redis.call('UNLINK', stub.buffer)
  redis.call('HDEL', P .. 'parked', run_id)
  redis.call('ZREM', P .. 'wake', run_id)
end
save_ready()
save_runs()
keep_clock()
write_all()
return {'OK', run.st, table.concat(pokes, ',')}
