-- The straight road: one plain step is done, its only successor waits for nothing else, and nothing else is ready. Most steps of a chain are
-- that simple, and a server meets this code so often that its length counts. Everything else takes the long road below, which writes the
-- same: a test compares the two.
do
  local function straight_on()
    local id, index, item, f, generation, kind, ran, after, _, note, text = unpack(ARGV, 8, 18)
    if kind ~= COMPLETED or item ~= NIL or note ~= NIL or text == NIL or stepped_back or not string.match(after, '^%d+$') then return end
    if redis.call('ZCARD', P .. 'ready:' .. queue) > 0 or redis.call('EXISTS', P .. 'holds') == 1 then return end
    local key = P .. 'run:' .. id
    local run = redis.call('HMGET', key, 'st', 'g', 'ph', 'l', 'h', 'w', 'q', 's', 'qr', 'pg', 'dl', 'up', 'ot', 'rs')
    local st, g, phase, left, graph, workflow, home, session, op = unpack(run, 1, 9)
    if st ~= RUN_RUNNING or g ~= generation or (phase or NIL) ~= NIL or (op or NIL) ~= NIL or (run[12] or NIL) ~= NIL or (run[14] or NIL) ~= NIL then return end
    local function shard(n)
      local number = tonumber(n)
      return number < 32 and key or key .. ':s' .. int(math.floor(number / 32))
    end
    local here, there, mine, next_one = shard(index), shard(after), nil, nil
    if here == there then
      local both = redis.call('HMGET', here, index, after)
      mine, next_one = both[1], both[2]
    else mine, next_one = redis.call('HGET', here, index), redis.call('HGET', there, after) end
    local held_by, middle, flags = string.match(mine or NIL, '^' .. RUNNING .. ';(%d+);(%d+;%d+;%d+;%d*);%d*;(.*)$')
    if held_by ~= f or next_one then return end
    local what = redis.call('HGET', P .. 'graph:' .. graph, after)
    local its_queue, lease, signature, needs =
      string.match(what, '^s;([^;]*);[^;]*;0;(%d+);[^;]*;[^;]*;[^;]*;([^;]*);1;([%d,]*);;')
    if not lease or (its_queue ~= NIL and its_queue or home) ~= queue or redis.call('SISMEMBER', P .. 'code:' .. code, signature) == 0 then return end
    local _, commas = string.gsub(needs, ',', NIL)
    if commas > 15 then return end

    local at, given = int(now), int(next_fence())
    local done = table.concat({COMPLETED, f, middle, ran, flags}, ';')
    local begun = table.concat({RUNNING, given, '1;0', at, '0;0', NIL}, ';')
    -- The time of its last progress and its line are told once within a window, as the notice is, and when another worker goes on.
    local tells = math.floor(num(run[10]) / NOTICE_MS) ~= math.floor(now / NOTICE_MS)
    local has_line = tells or run[13] ~= tag
    local fields = {'l', int(num(left) - 1)}
    if has_line then fields[3], fields[4], fields[5], fields[6] = 'pg', at, 'ot', tag end
    local ends = {index, done, index .. 'r', text}
    if there == here then ends[5], ends[6] = after, begun else redis.call('HSET', there, after, begun) end
    if here == key then for i = 1, #ends do fields[#fields + 1] = ends[i] end else redis.call('HSET', here, unpack(ends)) end
    redis.call('HSET', key, unpack(fields))
    redis.call('ZREM', P .. 'leases', id .. ':' .. index)
    redis.call('ZADD', P .. 'leases', int(now + num(lease)), id .. ':' .. after)
    local events = redis.call(
      'RPUSH', key .. ':log', table.concat({'c', at, index, f}, ';'), table.concat({'k', at, after, given, NIL, tag}, ';'))
    if tells then
      redis.call('XADD', P .. 'notices', 'MAXLEN', '~', '500', '*', 'r', id, 'n', events, 's', st)
    end
    if has_line then
      redis.call('ZADD', P .. 'progress', at, id)
      redis.call('HSET', P .. 'active', id, table.concat({st, workflow, at, NIL, tag, session or NIL}, ';'))
    end
    redis.call('HSET', HEAD, 'clock', at, 'fence', given)

    local line = table.concat({id, after, NIL, given, g, '1', NIL, workflow, graph, lease, '0', '0', at}, ';')
    tell({'OK', at, NIL, 'OK', line})
    local reply = {line, run[11] or NIL, session or NIL, false}
    for need in string.gmatch(needs, '%d+') do
      reply[#reply + 1] = need == index and text or redis.call('HGET', shard(need), need .. 'r')
    end
    return {'OK', at, NIL, {'OK'}, {reply}}
  end
  if not told and count == '1' and limit ~= '0' then
    local answer = straight_on()
    if answer then return answer end
  end
end
