-- The straight road of a start: a run of which nothing special was asked, whose only first step is a plain one. Everything else takes the long
-- road below, which writes the same: a test compares the two.
do
  local function straight_start()
    local asked = key .. digest .. forked_from .. queue_reason .. up .. tag .. lane .. doc .. deadline .. expires
    if asked ~= '00' or delay ~= '0' or start_at ~= '0' or records ~= '0' or stepped_back or not string.match(roots, '^%d+$') then return end
    local first = tonumber(roots)
    if first > 31 or redis.call('EXISTS', P .. 'run:' .. run_id) == 1 or redis.call('HEXISTS', P .. 'parked', run_id) == 1 then return end
    local its_queue, urgency = string.match(redis.call('HGET', P .. 'graph:' .. graph, roots) or NIL, '^s;([^;!]*);(%d*);')
    if not its_queue then return end
    if its_queue == NIL then its_queue = queue end
    if urgency == NIL then urgency = priority end

    local at, run = int(now), P .. 'run:' .. run_id
    local fields = {'w', workflow, 'h', graph, 'st', RUN_RUNNING, 'g', '1', 'q', queue, 'p', priority, 't', at, 'i', input, 'rc', retain_completed,
      'rf', retain_failed, 'l', steps, 'r', '1', 'pg', at, roots, table.concat({READY, '0;0;0', at, '0;0', NIL}, ';')}
    local n = #fields
    for name, value in pairs({s = session, tg = tags, hk = hooks, es = eaches, it = idle_timeout, lm = limit_keys}) do
      if value ~= NIL then fields[n + 1], fields[n + 2], n = name, value, n + 2 end
    end
    redis.call('HINCRBY', P .. 'graphs', graph, 1)
    redis.call('HSET', run, unpack(fields))
    redis.call('RPUSH', run .. ':log', table.concat({'s', at, '1', roots, '0'}, ';'))
    local notice = redis.call('XADD', P .. 'notices', 'MAXLEN', '~', '500', '*', 'r', run_id, 'n', '1', 's', RUN_RUNNING)
    redis.call('ZADD', P .. 'runs', at, run_id)
    redis.call('ZADD', P .. 'progress', at, run_id)
    redis.call('HSET', P .. 'active', run_id, table.concat({RUN_RUNNING, workflow, at, NIL, NIL, session}, ';'))
    redis.call('ZADD', P .. 'ready:' .. its_queue, int(num(urgency) * 1e13 + now), run_id .. ':' .. roots)
    redis.call('HSET', HEAD, 'clock', at, 'fence', int(fence))
    local poked = NIL
    if num(redis.call('HGET', P .. 'attended', its_queue)) <= now then
      local last = num(redis.call('HGET', P .. 'pokes', its_queue))
      if now - last >= 1000 or last > now then
        redis.call('HSET', P .. 'pokes', its_queue, at)
        poked = its_queue
      end
    end
    return {'OK', notice, poked, run_id, ''}
  end
  local answer = straight_start()
  if answer then return answer end
end
