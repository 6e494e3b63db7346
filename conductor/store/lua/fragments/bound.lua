-- What is bound to a run, ops and child runs, is refused from now on; the due sweep ends their records, some at a time.
local function release_ops(run) redis.call('ZADD', P .. 'due', int(now), 'unbound:' .. run.id) end

-- A step that waits for a child goes on when that has ended, however it did: it is claimed by the ordinary road. One that does not wait yet
-- finds the child ended when it says so.
local function waits_for(parent, index, child)
  local key, field = shard(parent, index), index .. 'c'
  return (writes[key] and writes[key][field] or redis.call('HGET', key, field)) == child
end
local function tell_parent(run)
  local parent, generation = above(run)
  local index = tonumber(run.ps)
  if not parent or ended(parent) or parent.g ~= generation then return end
  local rec = record(parent, index, NIL)
  if not rec or rec.state ~= WAITING or not waits_for(parent, index, run.id) then return end
  if not stopping(parent) then add(parent, 'ch', -1) end
  set_flag(rec, 'v', true)
  emit(parent, 'u', index, NIL, 'child')
  put_back(parent, index, NIL, rec)
end
-- A step whose code waits for a call looks again at once; it has said when it would look by itself.
local function wake_caller(run)
  local place = redis.call('HGET', run.key, 'cs')
  if place then redis.call('ZADD', P .. 'due', 'XX', 'LT', int(now), 'retry:' .. string.match(run.up, '^[^;]*') .. ':' .. place) end
end
