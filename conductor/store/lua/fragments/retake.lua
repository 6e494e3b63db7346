-- Steps that were set aside for want of code stand again: somebody who has it is here. A run that was paused for that goes on.
local ASIDE, moved = P .. 'aside', {}
local function restore(signature, entry)
  local home, score, member = string.match(entry, '^(.-)\n(.-)\n(.*)$')
  local id, index = parse_ref(member)
  local run = run_of(id)
  if not run or ended(run) then return end
  emit(run, 'n', index, signature)
  if run.st == RUN_PAUSED and run.wy == 'code_missing' and run.ph ~= 'U' then unpause(run, 'worker') end
  fresh[#fresh + 1] = {queue = home, member = member, score = tonumber(score)}
  moved[#moved + 1] = member .. ' taken_back'
end
local function retake(signature, most)
  local list = ASIDE .. ':' .. signature
  local entries = redis.call('LRANGE', list, 0, most - 1)
  for _, entry in ipairs(entries) do restore(signature, entry) end
  redis.call('LTRIM', list, #entries, -1)
  -- What is left has been waiting, but not for code: patience begins anew.
  if redis.call('EXISTS', list) == 0 then redis.call('ZREM', ASIDE, signature) else redis.call('ZADD', ASIDE, int(now), signature) end
end
