-- A fork keeps what its source run had completed: records and results are copied inside the server, items and staged lists by COPY.
-- `E;total` tells an each that begins anew how long its list is: the commit that would have told it was in the source run.
local function keep_step(run, index, rec, from)
  local source = P .. 'run:' .. run.fk
  local old = {key = source}
  save(run, index, NIL, parse(rec))
  local value = redis.call('HGET', shard(old, from), from .. 'r')
  if value then put(shard(run, index), index .. 'r', value) end
  if value and string.sub(value, 1, 1) == '@' then
    local staged = string.match(value, '^@(%d+)')
    redis.call('COPY', source .. ':v' .. from .. ':' .. staged, run.key .. ':v' .. index .. ':' .. staged)
  end
  local total = redis.call('HGET', source .. ':e' .. from, 'total')
  if not total then return end
  redis.call('COPY', source .. ':e' .. from, run.key .. ':e' .. index)
  for n = 0, math.floor(math.max(0, num(total) - 1) / 64) do
    redis.call('COPY', source .. ':e' .. from .. ':' .. n, run.key .. ':e' .. index .. ':' .. n)
  end
end
local function keep_steps(run, source, at, count)
  run.fk = source
  for i = 0, count - 1 do
    local index, rec, from = unpack(ARGV, at + i * 3, at + i * 3 + 2)
    if string.sub(rec, 1, 2) == 'E;' then bump(each_of(run, tonumber(index)), 'total', num(string.sub(rec, 3)))
    elseif from ~= NIL then keep_step(run, tonumber(index), rec, tonumber(from))
    else save(run, tonumber(index), NIL, parse(rec)) end
  end
end
