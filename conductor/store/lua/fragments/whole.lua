-- The names of everything a run has under its own name, so that it goes as a whole.
local function keys_of(run)
  local found = {run.key}
  for _, tail in ipairs({'log', 'err', 'live', 'cp', 'held', 'once', 'ops', 'called', 'sig', 'undo'}) do found[#found + 1] = run.key .. ':' .. tail end
  local nodes = redis.call('HLEN', P .. 'graph:' .. run.h) - 1
  for n = 1, math.floor(math.max(0, nodes - 1) / 32) do found[#found + 1] = run.key .. ':s' .. n end
  for _, index in ipairs(list_of(redis.call('HGET', run.key, 'es') or NIL)) do
    local e = run.key .. ':e' .. index
    local total = num(redis.call('HGET', e, 'total'))
    for n = 0, math.floor(math.max(0, total - 1) / 64) do found[#found + 1] = e .. ':' .. n end
    found[#found + 1] = e
    found[#found + 1] = e .. ':again'
    local source = descriptor(run, tonumber(index)).source
    local staged = string.match(redis.call('HGET', shard(run, tonumber(source)), source .. 'r') or NIL, '^@(%d+)')
    if staged then found[#found + 1] = run.key .. ':v' .. source .. ':' .. staged end
  end
  return found
end
local function unlink_all(keys)
  for at = 1, #keys, 1000 do redis.call('UNLINK', unpack(keys, at, math.min(at + 999, #keys))) end
end
local function forget_graph(hash)
  if redis.call('HINCRBY', P .. 'graphs', hash, -1) > 0 then return end
  redis.call('HDEL', P .. 'graphs', hash)
  redis.call('UNLINK', P .. 'graph:' .. hash)
end
