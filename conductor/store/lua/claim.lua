-- claim: ready → running, for up to `limit` steps of one queue. `first` 1: answers the poke first, so that what becomes ready later pokes
-- again; 2: promises to look again soon, so that it need not. With limit 0 it only says that nobody attends, and pokes if something is there.
--! args: caller number queue limit code tag first
--! use: partition clock token run save step each waiters ready lane bound undo close unpause retake give claim choose payloads
--! result: OK now pokes refs payloads | NO_CODE | STALE
limit, asked_by_worker = tonumber(limit), true
if not told then
  if first ~= '0' then answer_poke(queue, first == '2') end
  if first ~= '0' and limit > 0 then
    -- Whoever has the code takes what others set aside in the script that also claims: between the two they would set it aside again.
    for _, signature in ipairs(redis.call('ZINTER', 2, P .. 'aside', P .. 'code:' .. code)) do retake(signature, 100) end
  end
  if limit > 0 then choose(queue) end
  if no_code then poked[queue] = true end  -- it says what it can run and looks again; a poke would only bring it back to this answer
  local lines = refs()
  if not held('all') and not held('queue:' .. queue) and redis.call('ZCARD', P .. 'ready:' .. queue) > 0 then poke(queue) end
  save_ready()
  save_runs()
  keep_clock()
  write_all()
  told = {no_code and 'NO_CODE' or 'OK', int(now), table.concat(pokes, ','), '0'}
  for _, line in ipairs(lines) do told[#told + 1] = line end
  tell(told)
end
return {told[1], told[2], told[3], {}, with_payloads(told, 5, {})}
