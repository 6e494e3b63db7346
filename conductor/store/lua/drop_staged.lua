-- drop_staged: removes chunks whose fence was lost before a commit named them, and forgets those that a commit did name.
--! args: caller number older_than limit
--! use: partition clock token run step
--! result: OK dropped
if told then return told end
local dropped = 0
for _, member in ipairs(redis.call('ZRANGEBYSCORE', P .. 'staged', '-inf', int(now - num(older_than)), 'LIMIT', 0, limit)) do
  local id, index, f = parse_ref(member)
  local run = run_of(id)
  local rec = run and record(run, index, NIL)
  local held = rec and rec.fence == f and (rec.state == RUNNING and not ended(run))
  local named = run and string.sub(redis.call('HGET', shard(run, index), index .. 'r') or NIL, 1, #int(f) + 1) == '@' .. int(f)
  if not held then redis.call('ZREM', P .. 'staged', member) end
  if not held and not named then
    redis.call('UNLINK', P .. 'run:' .. id .. ':v' .. index .. ':' .. int(f))
    dropped = dropped + 1
  end
end
return tell({'OK', int(dropped)})
