-- take: ready → running for the one entry that its limit has permitted now; nothing, if it no longer stands. The queue is `queue!limit`.
--! args: caller number queue limit code tag member
--! use: partition clock token run save step each waiters ready lane bound undo close give claim choose payloads
--! result: OK now pokes refs payloads | NO_CODE | STALE
limit, asked_by_worker = tonumber(limit), true
if not told then
  local score = redis.call('ZSCORE', P .. 'ready:' .. queue, member)
  local stood = redis.call('ZREM', P .. 'ready:' .. queue, member) + redis.call('ZREM', P .. 'limited:' .. queue, member) > 0
  if stood then
    local id, index = parse_ref(member)
    local run = run_of(id)
    local entry = {queue = queue, member = member, score = tonumber(score or NIL) or (run and score_of(run, descriptor(run, index)))}
    local on_hold = held('all') or held('queue:' .. string.match(queue, '^[^!]*'))
    if on_hold or not take(entry) then fresh[#fresh + 1] = entry; poked[queue] = true end
  end
  local lines = refs()
  save_ready()
  save_runs()
  keep_clock()
  write_all()
  told = {no_code and 'NO_CODE' or 'OK', int(now), table.concat(pokes, ','), '0'}
  for _, line in ipairs(lines) do told[#told + 1] = line end
  tell(told)
end
return {told[1], told[2], told[3], {}, with_payloads(told, 5, {})}
