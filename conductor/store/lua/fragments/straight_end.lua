-- The straight road to the end: the last step of a plain run has completed, and nothing is left to do but to close it. Most runs of one step end
-- so, many in one call. Everything else takes the long road, which writes the same: a test compares the two.
local function straight_end(at)
  local id, index, item, f, generation, kind, ran, after, _, note, text = unpack(ARGV, at, at + 10)
  if kind ~= COMPLETED or item ~= NIL or note ~= NIL or text == NIL or after ~= NIL or stepped_back or runs[id] ~= nil then return end
  local key, number = P .. 'run:' .. id, tonumber(index)
  local run = redis.call('HMGET', key, 'st', 'g', 'l', 'a', 'rc', 'r', 'd', 'o', 'ch', 'f', 'ph', 'hk', 'up', 'k', 'ln', 'op', 'is', 'qr', index)
  if run[1] ~= RUN_RUNNING or run[2] ~= generation or run[3] ~= '1' or run[4] ~= '1' then return end
  for i = 6, 10 do if (run[i] or '0') ~= '0' then return end end
  for i = 11, 18 do if (run[i] or NIL) ~= NIL then return end end
  local here = shard({key = key}, number)
  local mine = here == key and run[19] or redis.call('HGET', here, index)
  local held_by, middle, flags = string.match(mine or NIL, '^' .. RUNNING .. ';(%d+);(%d+;%d+;%d+;%d*);%d*;(.*)$')
  if held_by ~= f then return end

  local done, ms = table.concat({COMPLETED, f, middle, ran, flags}, ';'), int(now)
  if here ~= key then redis.call('HSET', here, index, done, index .. 'r', text) end
  local ends = {'l', '0', 'a', '0', 'oc', RUN_COMPLETED, 'ow', NIL, 'st', RUN_COMPLETED, 'wy', NIL, 'e', ms}
  if here == key then ends[15], ends[16], ends[17], ends[18] = index, done, index .. 'r', text end
  redis.call('HSET', key, unpack(ends))
  redis.call('HDEL', P .. 'active', id)
  redis.call('ZREM', P .. 'progress', id)
  redis.call('ZADD', P .. 'ended:' .. RUN_COMPLETED, int(now + num(run[5])), id)
  local events = redis.call('RPUSH', key .. ':log', table.concat({'c', ms, index, f}, ';'), table.concat({'e', ms, RUN_COMPLETED}, ';'))
  redis.call('XADD', P .. 'notices', 'MAXLEN', '~', '500', '*', 'r', id, 'n', events, 's', RUN_COMPLETED)
  unleased[#unleased + 1] = id .. ':' .. index
  return 'OK'
end
